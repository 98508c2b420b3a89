"""Metrics of a rollout, by the names that trainers log. Pure functions of the counters in Redis."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.rollouts.weight_versions import SyncStatus

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters and recent measurements of a rollout, as read from Redis."""

    fields: Mapping[str, str]
    total: int
    ok: int
    failed: int
    recent: Sequence[str]
    """Freshness of the last batches, newest first."""
    times: Sequence[str]
    """Seconds that the last bundles took."""
    sync: SyncStatus | None
    now: float

    def number(self, name: str) -> int:
        return int(self.fields.get(name) or 0)

    def seconds(self, name: str) -> float:
        return float(self.fields.get(name) or 0)

    @property
    def under_way(self) -> int:
        """Number of samples that are being generated or rewarded."""
        return (self.total - self.ok - self.failed) * self.number("n")


def statistics(counts: Counts) -> dict[str, Any]:
    """Return the statistics of the API: of the queue, of generation and of the weight sync."""
    staleness = counts.fields.get("max_staleness", "")
    figures = metrics(counts)
    return {
        "queue_size": counts.number("queued"),
        "max_queue_size": counts.number("max_queue_size"),
        "queue_utilization": figures["fully_async/monitor/queue/utilization"],
        "leased_samples": counts.number("leased"),
        "samples_under_way": counts.under_way,
        "total_produced": counts.number("put"),
        "total_consumed": counts.number("acknowledged"),
        "handed_samples": counts.number("handed"),
        "returned_samples": counts.number("returned"),
        "dropped_samples": counts.number("dropped"),
        "dropped_stale_samples": counts.number("dropped"),
        "lost_samples": counts.number("lost"),
        "total_generated_samples": counts.ok * counts.number("n"),
        "generation_errors": counts.failed,
        "current_param_version": counts.number("version"),
        "max_staleness": int(staleness) if staleness else None,
        "is_paused": counts.fields.get("held") == "1",
        "pause_count": counts.number("pauses"),
        "resume_count": counts.number("resumes"),
        "metrics": figures,
    }


def metrics(counts: Counts) -> Figures:
    handed, produced = counts.number("handed"), counts.number("put")
    version_s = max(0.0, counts.now - counts.seconds("version_at"))
    active_s = _active_s(counts)
    watched_s = counts.now - counts.seconds("first_get_at") if counts.fields.get("first_get_at") else 0.0
    generated = counts.ok * counts.number("n")
    figures: Figures = {
        "fully_async/trainer/idle_ratio": min(1.0, counts.seconds("waited_s") / watched_s) if watched_s else 0.0,
        "fully_async/rollouter/active_time": active_s,
        "fully_async/rollouter/version_time": version_s,
        "fully_async/rollouter/idle_ratio": max(0.0, 1 - active_s / version_s) if version_s else 0.0,
        "fully_async/count/total_generated_samples": generated,
        "fully_async/count/stale_samples_processed": counts.number("stale"),
        "fully_async/count/current_param_version": counts.number("version"),
        "fully_async/count/dropped_stale_samples": counts.number("dropped"),
        "fully_async/count/staleness_samples": counts.number("since"),
        "fully_async/partial/total_partial_num": counts.number("partial"),
        "fully_async/partial/partial_ratio": counts.number("partial") / produced if produced else 0.0,
        "fully_async/partial/max_partial_span": counts.number("max_partial_span"),
        "fully_async/monitor/queue/mq_queue_size": counts.number("queued"),
        "fully_async/monitor/queue/utilization": counts.number("queued") / max(1, counts.number("max_queue_size")),
        "timing_s/param_sync": counts.sync.sync_s if counts.sync else 0.0,
    }
    figures |= processing_times([float(seconds) for seconds in counts.times])
    if handed:
        figures |= freshness([json.loads(batch) for batch in counts.recent])
    return figures


def freshness(batches: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the freshness of the last batches: ages in versions, latencies in seconds between put and get."""
    samples = sum(batch["samples"] for batch in batches)
    return {
        "freshness/avg_sample_age": sum(batch["age"] for batch in batches) / samples,
        "freshness/max_sample_age": max(batch["age_max"] for batch in batches),
        "freshness/min_sample_age": min(batch["age_min"] for batch in batches),
        "freshness/avg_sample_latency": sum(batch["seconds"] for batch in batches) / samples,
        "freshness/max_sample_latency": max(batch["seconds_max"] for batch in batches),
        "freshness/stale_samples_ratio": sum(batch["old"] for batch in batches) / samples,
        "version_diversity": len({version for batch in batches for version in batch["versions"]}),
    }


def batch_figures(batch: Mapping[str, Any]) -> Figures:
    """Return the metrics of a single batch; its record holds sums over the samples."""
    return {
        "samples": batch["samples"],
        "mean_age": batch["age"] / batch["samples"],
        "max_age": batch["age_max"],
        "mean_wait_s": batch["seconds"] / batch["samples"],
    }


def processing_times(seconds: Sequence[float]) -> Figures:
    ordered = sorted(seconds) or [0.0]
    names = {"tp50": 0.50, "tp95": 0.95, "tp99": 0.99}
    figures = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in names.items()}
    figures |= {"avg": sum(ordered) / len(ordered), "max": ordered[-1], "min": ordered[0]}
    return {f"fully_async/processing_time/{name}": value for name, value in figures.items()}


def _active_s(counts: Counts) -> float:
    since = counts.fields.get("busy_since")
    return counts.seconds("busy_s") + (max(0.0, counts.now - float(since)) if since else 0.0)
