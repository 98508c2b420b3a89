"""Assay beside what people use instead, in one run: `python -m bench.peers --help`. Figures: docs/performance.md."""
