"""Comparison of Assay with alternative tools ("peers") in a single run: `python -m bench.peers --help`.

The figures are in docs/performance.md.
"""
