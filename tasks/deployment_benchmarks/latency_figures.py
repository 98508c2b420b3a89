"""Latency figures that several scenarios share."""

from collections.abc import Iterable, Mapping
from typing import Any

from tasks.deployment_benchmarks.model import Figure
from tasks.measurement.percentiles import percentiles

LATENCIES = (
    Figure("latency_p50_ms", "ms", "lower"),
    Figure("latency_p95_ms", "ms", "lower"),
    Figure("latency_p99_ms", "ms", "lower"),
)


def latencies(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the latency percentiles of a job's items, each measured from its start on a worker."""
    found = percentiles((float(row["latency_ms"]) for row in rows), 0.5, 0.95, 0.99)
    return {figure.name: value for figure, value in zip(LATENCIES, found, strict=True)}
