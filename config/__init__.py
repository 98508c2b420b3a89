"""What may vary: settings, queue names, Redis keys, the Celery configuration, logging. Nothing here connects."""
