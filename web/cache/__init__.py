"""`/v1/cache`: cached results."""
