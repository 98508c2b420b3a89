"""`/health`: this process answers. `/ready`: the whole system can take work, or what is missing."""

from collections.abc import Callable
from typing import Any

from flask import Blueprint
from redis import Redis

from config.queues import CPU
from config.settings import DEVELOPMENT_NOTE
from tasks.connections import explained
from tasks.errors import AssayError
from web.description import described
from web.schemas import Readiness
from web.services import services

blueprint = Blueprint("health", __name__)

#: The pools without which some kind of job could never run.
_NEEDED_POOLS = ("device", "api", "cpu")


@blueprint.get("/health")
@described("Whether this process answers: the word ok.", {200: "text/plain"}, is_open=True)
def health() -> tuple[str, dict[str, str]]:
    return "ok", {"Content-Type": "text/plain; charset=utf-8"}


@blueprint.get("/ready")
@described(
    "Whether the whole system can take work, or what is missing.", {200: Readiness, 503: Readiness}, is_open=True
)
def ready() -> tuple[dict[str, Any], int]:
    missing, notes = readiness()
    return {"ready": not missing, "missing": missing, "notes": notes}, 503 if missing else 200


def readiness() -> tuple[list[str], list[str]]:
    """What is missing, and what one should know."""
    settings, missing = services().settings, []
    checks: list[Callable[[], list[str]]] = [
        lambda: _ping(services().state, settings.redis_url),
        _workers,
    ]
    if settings.cache_url != settings.redis_url:
        checks.append(lambda: _ping(services().cache, settings.cache_url))
    if settings.broker_url != settings.redis_url:
        checks.append(_broker)
    for check in checks:
        try:
            missing += check()
        except AssayError as error:
            missing.append(str(error))
    return list(dict.fromkeys(missing)), [DEVELOPMENT_NOTE] if settings.uses_development_api else []


def _ping(client: Redis, url: str) -> list[str]:
    with explained(url):
        client.ping()
    return []


def _broker() -> list[str]:
    services().celery.queued(CPU)
    return []


def _workers() -> list[str]:
    with explained(services().settings.redis_url):
        present = {worker.pool for worker in services().registry.workers() if worker.state == "ready"}
    settings = services().settings
    at_rest = {"api": settings.api_workers_min == 0, "cpu": settings.cpu_workers_min == 0}  # started by the first work
    return [f"no {pool} worker is ready" for pool in _NEEDED_POOLS if pool not in present and not at_rest.get(pool)]
