"""HTTP calls of outside APIs: retries, rate limits, fallbacks."""
