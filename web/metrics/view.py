"""`GET /metrics`: what Prometheus scrapes."""

import platform

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST
from redis import Redis

from config.profiles import Profiles
from config.settings import Settings
from tasks.apis.board import Board
from tasks.benchmarks.figures import Figures
from tasks.benchmarks.history import History
from tasks.connections import connect_once
from tasks.registry import Registry
from web.description import described
from web.docs import VERSION
from web.metrics.collector import Collector, Samples, Source, exposition
from web.metrics.fleet import Fleet
from web.metrics.work import Work
from web.services import services

blueprint = Blueprint("metrics", __name__)


@blueprint.get("/metrics")
@described("Figures of the whole system, for Prometheus.", {200: "text/plain"})
def metrics() -> Response:
    services().traffic.flush()
    return Response(exposition(services().collector), content_type=CONTENT_TYPE_LATEST)


def create_collector(settings: Settings, profiles: Profiles) -> Collector:
    # Clients of its own, that do not wait: a scrape that finds no Redis is to say so before Prometheus gives up.
    state, cache = connect_once(settings.redis_url), connect_once(settings.cache_url)
    work = Work(state)
    fleet = Fleet(Registry(state, settings.heartbeat_ttl_s), Board(state, profiles))
    return Collector(
        sources=[build],
        roles={
            "state": [
                memory("state", state),
                work.totals,
                work.queues,
                work.rollouts,
                fleet.workers,
                fleet.apis,
                benchmarks(History(state), Figures(state)),
            ],
            "cache": [memory("cache", cache), keys_of(cache)],
        },
    )


def build(samples: Samples) -> None:
    samples.add("assay_build_info", 1, VERSION, platform.python_version())


def memory(role: str, redis: Redis) -> Source:
    def source(samples: Samples) -> None:
        info = redis.info("memory")
        samples.add("assay_redis_memory_bytes", info["used_memory"], role)
        samples.add("assay_redis_memory_limit_bytes", info["maxmemory"], role)

    return source


def benchmarks(history: History, figures: Figures) -> Source:
    def source(samples: Samples) -> None:
        runs = history.newest(skipped=False)
        samples.add("assay_benchmark_regressions", len(figures.regressions()))
        ended = {run.name: run.ended_at for run in reversed(runs) if run.state == "done" and run.ended_at}
        for name, at in ended.items():
            samples.add("assay_benchmark_last_run_seconds", at, name)

    return source


def keys_of(cache: Redis) -> Source:
    return lambda samples: samples.add("assay_cache_keys", cache.dbsize())
