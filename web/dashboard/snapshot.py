"""What a snapshot of the system holds. Bounded: however many jobs there are, it reads the newest and the active."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from config import keys
from config.settings import DEVELOPMENT_POLICY_NOTE
from tasks.benchmarks.model import is_measured_with
from tasks.episodes.servers import pool_status
from tasks.jobs.model import Job
from tasks.jobs.trials import trials_of
from tasks.jobs.waiting import PoolWait, Waits
from tasks.totals import Totals
from web import fleet, health, policies
from web.answers import job_view
from web.dashboard.calls import calls
from web.dashboard.newest import Newest
from web.dashboard.pace import Pace
from web.services import Services

#: Newest jobs that are listed, and active ones beside them.
NEWEST, MOST_ACTIVE = 12, 40
#: Newest jobs that are counted, and the seconds for which their count is good.
COUNTED, COUNTED_S = 200, 5.0
_NO_CALLS: dict[str, Any] = {"latency_ms": None, "refused_429": 0}


class Snapshots:
    def __init__(self) -> None:
        self._pace = Pace()
        self._newest = Newest()
        self._counts: dict[str, Any] = {}
        self._counted_at = float("-inf")

    def take(self, shared: Services) -> dict[str, Any]:
        """Needs the application's context."""
        missing, notes = health.readiness()
        workers, queues, devices = shared.registry.workers(), fleet.queue_rows(), fleet.device_rows()
        waits = shared.waiting.read([str(row["queue"]) for row in queues])
        if time.monotonic() - self._counted_at > COUNTED_S:
            self._counts, self._counted_at = _counted(shared), time.monotonic()
        jobs, called = _jobs(shared, waits, self._newest.read(shared.state, NEWEST)), calls(Totals.read(shared.state))
        rates = self._pace.rates(waits.at, jobs)
        servers = pool_status(policies.servers())
        if servers["connected"] and shared.settings.uses_development_policy:
            notes = [*notes, DEVELOPMENT_POLICY_NOTE]
        return {
            "at": waits.at,
            "ready": not missing,
            "missing": missing,
            "notes": notes,
            "active": waits.active,
            "rate": sum(rates.values()),
            "queues": _queue_rows(queues, waits, rates),
            "pools": _pool_rows(waits.pools),
            "devices": [row | {"rate": _rate(rates, [row["queue"]])} for row in devices],
            "workers": [_worker_row(asdict(worker), rates) for worker in workers],
            "policies": {name: servers[name] for name in ("total_clients", "connected", "busy")},
            "cache": shared.core.cache.size(),
            "recent": self._counts,
            "profiles": [view | _NO_CALLS | called.get(view["name"], {}) for view in shared.board.views()],
            "jobs": [job_view(job) for job in jobs if not is_measured_with(job.kind, job.metadata)][
                : NEWEST + MOST_ACTIVE
            ],
        }


def _jobs(shared: Services, waits: Waits, listed: Sequence[str]) -> list[Job]:
    """Active ones first, then the newest; each newest first. Those that a benchmark submits are among them: their items
    count as work that is done."""
    newest = cast(list[str], shared.state.zrevrange(keys.jobs(), 0, NEWEST - 1))
    rollouts = cast(set[str], shared.state.smembers(keys.rollouts()))
    running = [each.job for each in shared.running.read([each.queue for each in waits.queues])]
    waiting = [*waits.jobs[:MOST_ACTIVE], *sorted(rollouts)[:MOST_ACTIVE], *running]
    found = shared.core.store.present(list(dict.fromkeys([*listed, *newest, *waiting])))
    found.sort(key=lambda job: (not job.is_active, -job.created_at))
    active = [job for job in found if job.is_active]
    return [*active[:MOST_ACTIVE], *(job for job in found if not job.is_active)]


def _counted(shared: Services) -> dict[str, Any]:
    """Of the newest jobs: their states, what failed, and what the cache saved them."""
    newest = cast(list[str], shared.state.zrevrange(keys.jobs(), 0, COUNTED - 1))
    pipeline = shared.state.pipeline(transaction=False)
    for job in newest:
        pipeline.hmget(keys.job(job), ["state", "layout", "asks", "ok", "failed", "cached"])
    states: Counter[str] = Counter()
    failed_jobs: list[tuple[str, int]] = []
    counts = {"items": 0, "failed": 0, "hits": 0, "calls_saved": 0}
    for job, (state, layout, asks, *numbers) in zip(newest, pipeline.execute(), strict=True):
        if state is None:  # expired since
            continue
        trials = trials_of(layout or "")
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
    """Why items of these jobs failed, the most frequent reason first. Beside each job, how often its items are run."""
    pipeline = shared.state.pipeline(transaction=False)
    for job, _ in jobs:
        pipeline.hgetall(keys.job_reasons(job))
    found: Counter[str] = Counter()
    for (_, trials), reasons in zip(jobs, pipeline.execute(), strict=True):
        found.update({name: int(number) // trials for name, number in reasons.items()})
    return {name: number for name, number in found.most_common() if number > 0}


def _queue_rows(rows: Sequence[dict[str, Any]], waits: Waits, rates: dict[str, float]) -> list[dict[str, Any]]:
    found = {each.queue: each for each in waits.queues}
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
    """All priorities together."""
    rows: dict[str, dict[str, Any]] = {}
    for each in pools:
        row = rows.setdefault(each.pool, {"pool": each.pool, "items": 0, "jobs": 0, "oldest_s": None})
        row["items"] += each.items
        row["jobs"] += each.jobs
        row["oldest_s"] = max((age for age in (row["oldest_s"], each.oldest_s) if age is not None), default=None)
    return list(rows.values())


def _worker_row(worker: dict[str, Any], rates: dict[str, float]) -> dict[str, Any]:
    """Without what is told elsewhere, or is nobody's business."""
    hidden = ("incarnation", "launcher", "policies", "models", "weights", "loading")
    return {name: value for name, value in worker.items() if name not in hidden} | {
        "rate": _rate(rates, [worker["name"]])
    }


def _rate(rates: dict[str, float], workers: Sequence[str]) -> float:
    return sum(rates.get(name, 0.0) for name in workers)
