"""Simulated environments for robot policies: one file each, one small interface (`environment.py`)."""
