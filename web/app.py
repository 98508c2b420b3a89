"""The Flask application factory."""

from flask import Flask

from config.settings import Settings
from tasks.app import create_celery
from tasks.connections import connect
from tasks.registry import Registry
from web import errors, fleet, health, pages
from web.services import Services


def create_app(settings: Settings) -> Flask:
    """Build the application. Connects to nothing: Redis may come up later."""
    app = Flask(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]  # the default provider has it; its base class does not say
    state = connect(settings.redis_url)
    app.extensions["assay"] = Services(
        settings=settings,
        state=state,
        cache=connect(settings.cache_url),
        celery=create_celery(settings),
        registry=Registry(state, settings.heartbeat_ttl_s),
    )
    errors.init_app(app)
    for blueprint in (health.blueprint, fleet.blueprint, pages.blueprint):
        app.register_blueprint(blueprint)
    return app
