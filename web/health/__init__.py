"""`/health` and `/ready`."""
