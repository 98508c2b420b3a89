"""Processes that benchmarks start, measure and stop: Redis, workers, web servers, programs."""
