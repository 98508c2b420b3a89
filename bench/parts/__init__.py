"""Benchmark programs, one for each part of Assay: `python -m bench NAME` runs `bench/parts/NAME.py`."""
