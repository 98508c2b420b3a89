"""Execution of chunks in a worker: taking them, running batches, recording results."""
