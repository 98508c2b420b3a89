"""Soak test: minutes of mixed jobs on a private system while processes are killed at random, then consistency checks.

`make soak`, or `python -m bench.soak --help`. docs/operations.md explains the report.
"""
