"""Assay beside what people use instead, in one run: `python -m bench.peers --help`. README.md has the last figures."""
