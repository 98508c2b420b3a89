"""Measurement shared by `bench/` and `tasks/deployment_benchmarks/`.

`spread`, `percentiles`, `noise` (regressions), `machine` (hardware, versions, commit) and `timed_job`.
"""
