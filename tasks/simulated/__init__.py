"""Job kind `simulated`: an engine with configurable cost, failure rate, crash rate and result size. For tests and
benchmarks."""
