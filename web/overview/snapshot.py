"""Snapshot of the whole system. Its cost is bounded: it reads only the newest and the active jobs, up to a limit."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from config import keys
from config.settings import DEVELOPMENT_POLICY_NOTE
from tasks.counters import Totals
from tasks.deployment_benchmarks.model import is_measured_with
from tasks.episodes.policy_servers import pool_status
from tasks.jobs.model import Job
from tasks.jobs.queries.queue_depth import PoolWait, QueueDepths
from tasks.jobs.state.layout import Layout
from web.fleet import views as fleet
from web.health import views as health
from web.jobs.job_responses import job_view
from web.overview.api_calls import call_statistics
from web.overview.newest_jobs import NewestJobs
from web.overview.throughput import ThroughputMeter
from web.policies import views as policies
from web.services import Services

#: Limits of the listed jobs: the newest, and the active.
NEWEST, MAX_ACTIVE = 12, 40
#: Number of the newest jobs in the statistics, and the seconds for which the statistics are cached.
COUNTED, COUNTED_S = 200, 5.0
_NO_CALLS: dict[str, Any] = {"latency_ms": None, "refused_429": 0}


class SnapshotBuilder:
    """Builder of snapshots; it keeps the state between two snapshots that rates need."""

    def __init__(self) -> None:
        self._throughput = ThroughputMeter()
        self._newest = NewestJobs()
        self._counts: dict[str, Any] = {}
        self._counted_at = float("-inf")

    def build(self, shared: Services) -> dict[str, Any]:
        """Read the whole system. Needs the application's context."""
        missing, notes = health.readiness()
        workers, queues, devices = shared.registry.workers(), fleet.queue_rows(), fleet.device_rows()
        depths = shared.queue_depth.read([str(row["queue"]) for row in queues])
        if time.monotonic() - self._counted_at > COUNTED_S:
            self._counts, self._counted_at = _recent_statistics(shared), time.monotonic()
        jobs = _jobs(shared, depths, self._newest.read(shared.state, NEWEST))
        call_stats = call_statistics(Totals.read(shared.state))
        rates = self._throughput.rates(depths.at, jobs)
        servers = pool_status(policies.servers())
        if servers["connected"] and shared.settings.uses_development_policy:
            notes = [*notes, DEVELOPMENT_POLICY_NOTE]
        return {
            "at": depths.at,
            "ready": not missing,
            "missing": missing,
            "notes": notes,
            "active": depths.active,
            "rate": sum(rates.values()),
            "queues": _queue_rows(queues, depths, rates),
            "pools": _pool_rows(depths.pools),
            "devices": [row | {"rate": _rate(rates, [row["queue"]])} for row in devices],
            "workers": [_worker_row(asdict(worker), rates) for worker in workers],
            "policies": {name: servers[name] for name in ("total_clients", "connected", "busy")},
            "cache": shared.core.cache.size(),
            "recent": self._counts,
            "profiles": [
                view | _NO_CALLS | call_stats.get(view["name"], {}) for view in shared.profile_statuses.views()
            ],
            "jobs": [job_view(job) for job in jobs if not is_measured_with(job.kind, job.metadata)][
                : NEWEST + MAX_ACTIVE
            ],
        }


def _jobs(shared: Services, depths: QueueDepths, listed: Sequence[str]) -> list[Job]:
    """Return the active jobs, then the newest jobs, each in order newest first. Jobs of benchmarks are included: their
    items count for the throughput."""
    newest = cast(list[str], shared.state.zrevrange(keys.jobs(), 0, NEWEST - 1))
    rollouts = cast(set[str], shared.state.smembers(keys.rollouts()))
    running = [each.job_id for each in shared.running_chunks.read([each.queue for each in depths.queues])]
    waiting = [*depths.jobs[:MAX_ACTIVE], *sorted(rollouts)[:MAX_ACTIVE], *running]
    found = shared.core.store.present(list(dict.fromkeys([*listed, *newest, *waiting])))
    found.sort(key=lambda job: (not job.is_active, -job.created_at))
    active = [job for job in found if job.is_active]
    return [*active[:MAX_ACTIVE], *(job for job in found if not job.is_active)]


def _recent_statistics(shared: Services) -> dict[str, Any]:
    """Compute the statistics of the newest jobs: states, failures, and cache hits."""
    newest = cast(list[str], shared.state.zrevrange(keys.jobs(), 0, COUNTED - 1))
    pipeline = shared.state.pipeline(transaction=False)
    for job in newest:
        pipeline.hmget(keys.job(job), ["state", "layout", "asks", "ok", "failed", "cached"])
    states: Counter[str] = Counter()
    failed_jobs: list[tuple[str, int]] = []
    counts = {"items": 0, "failed": 0, "hits": 0, "calls_saved": 0}
    for job, (state, layout, asks, *numbers) in zip(newest, pipeline.execute(), strict=True):
        if state is None:  # expired meanwhile
            continue
        trials = Layout.parse(layout or "").trials
        ok, failed, cached = (int(number or 0) // trials for number in numbers)
        if failed:
            failed_jobs.append((job, trials))
        states[state] += 1
        counts["items"] += ok + failed
        counts["failed"] += failed
        counts["hits"] += cached
        counts["calls_saved"] += cached if asks == "1" else 0
    return {"jobs": states.total(), "states": states, "reasons": _reasons(shared, failed_jobs)} | counts


def _reasons(shared: Services, jobs: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Count the failed items of the jobs by error type, the most frequent first. `jobs` has each job's number of
    trials."""
    pipeline = shared.state.pipeline(transaction=False)
    for job, _ in jobs:
        pipeline.hgetall(keys.job_reasons(job))
    found: Counter[str] = Counter()
    for (_, trials), reasons in zip(jobs, pipeline.execute(), strict=True):
        found.update({name: int(number) // trials for name, number in reasons.items()})
    return {name: number for name, number in found.most_common() if number > 0}


def _queue_rows(rows: Sequence[dict[str, Any]], depths: QueueDepths, rates: dict[str, float]) -> list[dict[str, Any]]:
    found = {each.queue: each for each in depths.queues}
    return [
        row
        | {
            "chunks": found[row["queue"]].chunks,
            "items": found[row["queue"]].items,
            "oldest_s": found[row["queue"]].oldest_s,
            "running": found[row["queue"]].running,
            "rate": _rate(rates, row["workers"]),
        }
        for row in rows
    ]


def _pool_rows(pools: Sequence[PoolWait]) -> list[dict[str, Any]]:
    """Sum the waiting items of each pool over its priorities."""
    rows: dict[str, dict[str, Any]] = {}
    for each in pools:
        row = rows.setdefault(each.pool, {"pool": each.pool, "items": 0, "jobs": 0, "oldest_s": None})
        row["items"] += each.items
        row["jobs"] += each.jobs
        row["oldest_s"] = max((age for age in (row["oldest_s"], each.oldest_s) if age is not None), default=None)
    return list(rows.values())


def _worker_row(worker: dict[str, Any], rates: dict[str, float]) -> dict[str, Any]:
    """Return the worker without fields that are internal, or shown elsewhere."""
    hidden = ("incarnation", "launcher", "policies", "models", "weights", "loading")
    return {name: value for name, value in worker.items() if name not in hidden} | {
        "rate": _rate(rates, [worker["name"]])
    }


def _rate(rates: dict[str, float], workers: Sequence[str]) -> float:
    return sum(rates.get(name, 0.0) for name in workers)
