"""Percentiles of measured durations."""

from collections.abc import Iterable, Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value at this rank of the sorted values: nearest rank, without interpolation."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def percentiles(values: Iterable[float], *shares: float) -> list[float]:
    """Sort the values, which must not be empty, and return a percentile for each share."""
    ordered = sorted(values)
    return [percentile(ordered, share) for share in shares]
