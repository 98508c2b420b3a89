"""The scenarios, one module for each part of the system."""
