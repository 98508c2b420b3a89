"""Calls of outside APIs: what is asked and answered, and what all workers share about them."""
