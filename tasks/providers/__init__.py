"""Calls of outside chat APIs: requests, replies and retry decisions, and the limits that the workers share in Redis."""
