"""Backends of inference jobs: `backend.py` has their interface, each further module an implementation."""
