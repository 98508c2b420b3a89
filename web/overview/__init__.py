"""`/v1/overview`: one snapshot of the whole system, and a stream of snapshots for the dashboard."""
