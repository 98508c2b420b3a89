"""`unit` is pure, `integration` uses a Redis the tests started, `end_to_end` runs the Procfile's real processes."""
