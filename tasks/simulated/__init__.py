"""Job kind `simulated`: an engine with a set cost, failure rate, crash rate and result size. For tests, benchmarks."""
