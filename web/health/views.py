"""`/health`: this process responds. `/ready`: the whole system can run jobs, or the list of missing parts."""

from collections.abc import Callable
from typing import Any

from flask import Blueprint
from redis import Redis
from redis.exceptions import RedisError

from config.pools import POOLS
from config.settings import DEVELOPMENT_NOTE
from tasks.connections import translate_redis_errors
from tasks.errors import AssayError
from web.health.schemas import Readiness
from web.http.openapi.describe import described
from web.services import services

blueprint = Blueprint("health", __name__)


@blueprint.get("/health")
@described("Check this process: the response is the word ok.", {200: "text/plain"}, is_open=True)
def health() -> tuple[str, dict[str, str]]:
    return "ok", {"Content-Type": "text/plain; charset=utf-8"}


@blueprint.get("/ready")
@described(
    "Check the whole system: whether it can run jobs, or a list of the missing parts.",
    {200: Readiness, 503: Readiness},
    is_open=True,
)
def ready() -> tuple[dict[str, Any], int]:
    missing, notes = readiness()
    return {"ready": not missing, "missing": missing, "notes": notes}, 503 if missing else 200


def readiness() -> tuple[list[str], list[str]]:
    """Return the missing parts of the system, and notes for its operator."""
    settings, missing = services().settings, []
    checks: list[Callable[[], list[str]]] = [
        lambda: _ping(services().state, settings.redis_url),
        _memory,
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
    notes = [DEVELOPMENT_NOTE] if settings.uses_development_api else []
    return list(dict.fromkeys(missing)), [*_storage(), *notes]


def _memory() -> list[str]:
    with translate_redis_errors(services().settings.redis_url):
        problem = services().memory_budget.problem()
    return [problem] if problem else []


def _ping(client: Redis, url: str) -> list[str]:
    with translate_redis_errors(url):
        client.ping()
    return []


def _storage() -> list[str]:
    """Return notes on a storage that is unavailable. They do not make the system unready: jobs that need no storage
    run."""
    try:
        return services().storage_status.notes()
    except RedisError:  # `missing` names it
        return []


def _broker() -> list[str]:
    services().celery.queued("cpu")
    return []


def _workers() -> list[str]:
    with translate_redis_errors(services().settings.redis_url):
        present = {worker.pool for worker in services().registry.workers() if worker.state == "ready"}
    settings = services().settings
    return [
        f"no {pool.name} worker is ready"
        for pool in POOLS.values()
        if pool.is_required and pool.name not in present and not pool.starts_on_demand(settings)
    ]
