"""`/v1/workers`, `/v1/devices` and `/v1/queues`."""
