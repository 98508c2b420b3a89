"""Latency and rate-limit statistics of calls to outside APIs, by profile, from the counters since the state Redis was
set up."""

from collections.abc import Sequence
from typing import Any

from tasks.counters import Totals


def call_statistics(totals: Totals) -> dict[str, dict[str, Any]]:
    """Return for each profile the latency percentiles p50 and p95 in milliseconds, and the number of 429 responses."""
    limited = {profile: number for (profile, outcome), number in totals.of("api") if outcome == "limited"}
    found = {
        profile: {"latency_ms": {f"p{share}": percentile(buckets, share / 100) for share in (50, 95)}}
        for (profile,), buckets, _ in totals.histogram("api_s")
    }
    return {
        profile: {"latency_ms": None, "refused_429": limited.get(profile, 0)} | found.get(profile, {})
        for profile in {*limited, *found}
    }


def percentile(buckets: Sequence[tuple[str, float]], share: float) -> float | None:
    """Return a percentile in milliseconds. Calls are assumed to be spread evenly between the bounds of their bucket;
    beyond the last bound, the result is that bound."""
    wanted, low, before = share * buckets[-1][1], 0.0, 0.0
    for bound, cumulated in buckets:
        if cumulated >= wanted > before:
            high = low if bound == "+Inf" else float(bound)
            return 1000 * (low + (high - low) * (wanted - before) / (cumulated - before))
        low, before = (low if bound == "+Inf" else float(bound)), cumulated
    return None
