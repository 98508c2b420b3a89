"""`GET /metrics`: the endpoint that Prometheus scrapes."""

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST

from config.profiles import Profiles
from config.settings import Settings
from tasks.connections import connect_for_checks, redact
from tasks.deployment_benchmarks.figure_history import FigureHistory
from tasks.deployment_benchmarks.run_history import RunHistory
from tasks.jobs.state.storage_faults import StorageStatus
from tasks.providers.profile_status import ProfileStatuses
from tasks.worker_registry import Registry
from web.http.openapi.describe import described
from web.metrics import system
from web.metrics.collector import Collector, exposition
from web.metrics.fleet import FleetMetrics
from web.metrics.jobs import JobMetrics
from web.services import services

blueprint = Blueprint("metrics", __name__)


@blueprint.get("/metrics")
@described("Read the metrics of the whole system, for Prometheus.", {200: "text/plain"})
def metrics() -> Response:
    services().request_metrics.flush()
    return Response(exposition(services().metrics_collector), content_type=CONTENT_TYPE_LATEST)


def create_collector(settings: Settings, profiles: Profiles) -> Collector:
    # Separate clients that do not retry: without Redis, a scrape must answer before Prometheus times out.
    state, cache = connect_for_checks(settings.redis_url), connect_for_checks(settings.cache_url)
    work = JobMetrics(state)
    fleet = FleetMetrics(Registry(state, settings.heartbeat_ttl_s), ProfileStatuses(state, profiles))
    return Collector(
        sources=[system.build],
        roles={
            "state": [
                system.memory("state", state),
                system.storage(StorageStatus(state, redact(settings.storage_url))),
                work.totals,
                work.queues,
                work.rollouts,
                fleet.workers,
                fleet.apis,
                system.benchmarks(RunHistory(state), FigureHistory(state)),
            ],
            "cache": [system.memory("cache", cache), system.keys_of(cache)],
        },
    )
