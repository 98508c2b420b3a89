"""Entry point of gunicorn: the WSGI application."""

from config.settings import load_settings
from web.app import create_app

app = create_app(load_settings())
