"""`/v1/benchmarks`: benchmark runs, their reports and history."""
