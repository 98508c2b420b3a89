"""Metrics of jobs, items, queues and rollouts, from the ledger and from the counters of all time."""

import json
from collections.abc import Mapping
from typing import Any

from redis import Redis

from config import keys
from tasks.counters import MILLION, Totals
from tasks.jobs.queries.queue_depth import QueueDepthReader
from tasks.jobs.queries.running_chunks import RunningChunks
from tasks.jobs.states import RUNNABLE
from web.metrics.collector import Scrape

#: Limit of the running chunks counted per queue: more than workers ever have threads.
MAX_RUNNING = 4096
#: Counters that are exported unchanged: name in the totals, metric.
_COUNTED = {
    "jobs": "assay_jobs_submitted",
    "jobs_ended": "assay_jobs_ended",
    "items": "assay_items",
    "cached": "assay_items_cached",
    "errors": "assay_item_errors",
    "retries": "assay_item_retries",
    "worked": "assay_work_items",
    "recovered": "assay_chunks_recovered",
    "repaired": "assay_items_repaired",
    "lost": "assay_processes_lost",
    "samples": "assay_rollout_sample_events",
    "api_tokens": "assay_api_tokens",
    "http": "assay_http_requests",
}
_HISTOGRAMS = {
    "job_s": "assay_job_seconds",
    "api_s": "assay_api_call_seconds",
    "http_s": "assay_http_request_seconds",
}


class JobMetrics:
    """Three sources: `totals`, `queues` and `rollouts`."""

    def __init__(self, state: Redis) -> None:
        self._state = state
        self._waiting = QueueDepthReader(state)
        self._running = RunningChunks(state)

    def totals(self, samples: Scrape) -> None:
        totals = Totals.read(self._state)
        for name, metric in _COUNTED.items():
            for labels, value in totals.of(name):
                samples.add(metric, value, *labels)
        for labels, value in totals.of("worked_s"):
            samples.add("assay_work_seconds", value / MILLION, *labels)
        for (profile, outcome), value in totals.of("api"):
            samples.add("assay_api_calls", value, profile, "answered" if outcome == "ok" else outcome)
        for labels, value in totals.of("api_cost"):
            samples.add("assay_api_cost", value / 1e9, *labels)
        for name, metric in _HISTOGRAMS.items():
            for labels, buckets, total in totals.histogram(name):
                samples.add_histogram(metric, buckets, total, *labels)

    def queues(self, samples: Scrape) -> None:
        depths = self._waiting.read()
        for each in depths.queues:
            samples.add("assay_queue_chunks", each.chunks, each.queue, "waiting")
            samples.add("assay_queue_chunks", each.running, each.queue, "running")
            samples.add("assay_queue_oldest_seconds", each.oldest_s or 0.0, each.queue)
            samples.add("assay_queue_held", each.mode != "open", each.queue)
        longest: dict[str, float] = {}
        for pool in depths.pools:
            samples.add("assay_pool_waiting_items", pool.items, pool.pool, pool.priority)
            samples.add("assay_pool_waiting_jobs", pool.jobs, pool.pool, pool.priority)
            longest[pool.pool] = max(longest.get(pool.pool, 0.0), pool.unserved_s or 0.0)
        for name, seconds in longest.items():
            samples.add("assay_pool_waiting_seconds", seconds, name)
        running: dict[tuple[str, str], int] = {}
        for chunk in self._running.read(most=MAX_RUNNING):
            running[chunk.queue, chunk.kind] = running.get((chunk.queue, chunk.kind), 0) + chunk.items
        for labels, items in running.items():
            samples.add("assay_running_items", items, *labels)
        samples.add("assay_jobs_active", depths.active)
        samples.add("assay_chunks_dispatched", int(self._state.get(keys.sequence()) or 0))

    def rollouts(self, samples: Scrape) -> None:
        pipeline = self._state.pipeline(transaction=False)
        names = sorted(str(each) for each in self._state.smembers(keys.rollouts()))
        for name in names:
            pipeline.hgetall(keys.rollout(name))
            pipeline.hmget(keys.job(name), "state", "total", "ok", "failed")
            pipeline.lindex(keys.rollout_recent(name), 0)
        replies = pipeline.execute()
        active = [
            (fields, job, json.loads(recent) if recent else None)
            for fields, job, recent in zip(replies[::3], replies[1::3], replies[2::3], strict=True)
            if fields and job[0] in RUNNABLE
        ]
        samples.add("assay_rollouts", len(active))
        for state in ("queued", "leased"):
            samples.add("assay_rollout_samples", sum(int(fields.get(state) or 0) for fields, _, _ in active), state)
        samples.add("assay_rollout_samples", sum(_under_way(fields, job) for fields, job, _ in active), "under_way")
        batches = [recent for _, _, recent in active if recent]
        if batches:
            samples.add("assay_rollout_sample_age_versions", max(_mean(batch, "age") for batch in batches))
            samples.add("assay_rollout_sample_age_seconds", max(_mean(batch, "seconds") for batch in batches))


def _under_way(fields: Mapping[str, str], job: tuple[str, str, str, str]) -> int:
    total, ok, failed = (int(each or 0) for each in job[1:])
    return (total - ok - failed) * int(fields.get("n") or 1)


def _mean(batch: Mapping[str, Any], field: str) -> float:
    return float(batch[field]) / max(1.0, float(batch["samples"]))
