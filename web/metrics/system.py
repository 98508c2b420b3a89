"""Metrics of the system itself: versions, memory of Redis, keys of the cache, and the last benchmark runs."""

import platform
from collections import Counter
from typing import get_args

from redis import Redis

from tasks.deployment_benchmarks.figure_history import FigureHistory
from tasks.deployment_benchmarks.run_history import RunHistory
from tasks.jobs.state.storage_faults import Access, StorageStatus
from web.http.openapi.document import VERSION
from web.metrics.collector import Scrape, Source


def build(samples: Scrape) -> None:
    samples.add("assay_build_info", 1, VERSION, platform.python_version())


def memory(role: str, redis: Redis) -> Source:
    def source(samples: Scrape) -> None:
        info = redis.info("memory")
        samples.add("assay_redis_memory_bytes", info["used_memory"], role)
        samples.add("assay_redis_memory_limit_bytes", info["maxmemory"], role)

    return source


def benchmarks(history: RunHistory, figures: FigureHistory) -> Source:
    def source(samples: Scrape) -> None:
        runs = history.newest(skipped=False)
        samples.add("assay_benchmark_regressions", len(figures.regressions()))
        ended = {run.name: run.ended_at for run in reversed(runs) if run.state == "done" and run.ended_at}
        for name, at in ended.items():
            samples.add("assay_benchmark_last_run_seconds", at, name)

    return source


def storage(status: StorageStatus) -> Source:
    def source(samples: Scrape) -> None:
        hosts = Counter(fault.access for fault in status.faults())
        for access in get_args(Access):  # zero is reported too: alerts need it
            samples.add("assay_storage_faults", hosts[access], access)

    return source


def keys_of(cache: Redis) -> Source:
    return lambda samples: samples.add("assay_cache_keys", cache.dbsize())
