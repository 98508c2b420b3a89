"""Benchmark scenarios, a module for each part of the system."""
