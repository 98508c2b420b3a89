"""The built-in rule scorers: small pure functions, each with a pydantic model of its options."""
