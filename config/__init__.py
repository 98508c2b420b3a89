"""Configuration: settings, queue names, Redis keys, Celery, logging. Importing this package opens no connections."""
