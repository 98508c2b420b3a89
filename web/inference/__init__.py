"""Output rows and statistics of inference jobs."""
