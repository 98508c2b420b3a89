"""`/metrics` for Prometheus. The figures are in Redis, so any web process tells those of all."""
