"""Workloads that every peer processes: judge questions and inference rows."""
