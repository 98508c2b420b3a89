"""Minutes of mixed work on a system of its own, while its parts are killed at random; in the end the books balance.

`make soak`, or `python -m bench.soak --help`. docs/operations.md says how to read the report.
"""
