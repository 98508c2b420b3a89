"""`/v1/profiles`: outside APIs and their limits."""
