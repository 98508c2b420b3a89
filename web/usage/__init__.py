"""`/v1/usage`: usage and cost of outside APIs."""
