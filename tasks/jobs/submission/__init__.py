"""Submission of jobs: validation, uploads, admission by backlog."""
