"""The application as `celery -A workers.celery ...` finds it: for Flower, and for `celery inspect` by hand."""

from config.settings import load_settings
from tasks.app import create_celery

app = create_celery(load_settings())
