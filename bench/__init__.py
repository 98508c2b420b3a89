"""Benchmarks of Assay's code against alternatives for the same work; `python -m bench` runs them.

Each figure is the ratio of two measurements that alternate in a single run, because absolute figures depend on the
machine. The speed of an installed system over time is measured by the job kind `benchmark`
(`tasks/deployment_benchmarks/`).
"""
