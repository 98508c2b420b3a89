"""Celery application for the command line (`celery -A workers.celery ...`): for Flower, and manual `celery inspect`."""

from config.settings import load_settings
from tasks.app import create_celery

app = create_celery(load_settings())
