"""HTTP calls of outside APIs."""
