"""The inside of one Celery worker process: consumer, heartbeat, watchdog, telemetry, runtime."""
