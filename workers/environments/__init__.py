"""Simulated environments for robot policies: one module each, behind a small interface (`environment.py`)."""
