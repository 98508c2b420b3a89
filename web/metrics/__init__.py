"""`/metrics` for Prometheus. The figures are in Redis, so every web process reports the whole system."""
