"""How calls of outside APIs went, by profile, from what was counted of all of them."""

from collections.abc import Sequence
from typing import Any

from tasks.totals import Totals


def calls(totals: Totals) -> dict[str, dict[str, Any]]:
    """By profile: milliseconds that half and 95 % of its calls took at most, and how many were answered 429."""
    refused = {profile: number for (profile, outcome), number in totals.of("api") if outcome == "limited"}
    found = {
        profile: {"latency_ms": {f"p{share}": percentile(buckets, share / 100) for share in (50, 95)}}
        for (profile,), buckets, _ in totals.histogram("api_s")
    }
    return {
        profile: {"latency_ms": None, "refused_429": refused.get(profile, 0)} | found.get(profile, {})
        for profile in {*refused, *found}
    }


def percentile(buckets: Sequence[tuple[str, float]], share: float) -> float | None:
    """In milliseconds, as if calls lay evenly between the bounds of their bucket; beyond the last bound, that bound."""
    wanted, low, before = share * buckets[-1][1], 0.0, 0.0
    for bound, cumulated in buckets:
        if cumulated >= wanted > before:
            high = low if bound == "+Inf" else float(bound)
            return 1000 * (low + (high - low) * (wanted - before) / (cumulated - before))
        low, before = (low if bound == "+Inf" else float(bound)), cumulated
    return None
