"""Percentiles of what was measured."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasks.benchmarks.model import Figure

LATENCIES = (
    Figure("latency_p50_ms", "ms", "lower"),
    Figure("latency_p95_ms", "ms", "lower"),
    Figure("latency_p99_ms", "ms", "lower"),
)


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latencies(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Of the items of a job, each from when a worker began it."""
    ordered = sorted(float(row["latency_ms"]) for row in rows)
    return {f"latency_p{round(100 * share)}_ms": percentile(ordered, share) for share in (0.5, 0.95, 0.99)}
