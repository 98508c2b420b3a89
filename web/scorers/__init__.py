"""`/v1/scorers`: the registered scorers."""
