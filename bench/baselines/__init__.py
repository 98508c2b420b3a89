"""Baselines for the benchmark programs in `bench/parts/`: the same work without Assay."""
