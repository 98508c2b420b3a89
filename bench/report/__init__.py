"""Results of a benchmark run: figures with their targets, and the tables of docs/performance.md."""
