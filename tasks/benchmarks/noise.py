"""Whether a figure has got worse than its own noise explains."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tasks.benchmarks.model import Better

#: Earlier runs that are looked at, and without so many of which nothing is said.
LAST, LEAST = 10, 3
#: A band is three standard deviations wide on each side, as estimated by the median deviation, which one outlier does
#: not move; and never narrower than this share of the usual value.
DEVIATIONS, FLOOR = 3.0, 0.05
_TO_STANDARD = 1.4826


@dataclass(frozen=True, slots=True)
class Band:
    usual: float
    low: float
    high: float


def band(earlier: Sequence[float]) -> Band | None:
    """What the last runs, oldest first, make of a figure."""
    values = list(earlier)[-LAST:]
    if len(values) < LEAST:
        return None
    usual = median(values)
    deviation = _TO_STANDARD * median(abs(value - usual) for value in values)
    half = max(DEVIATIONS * deviation, FLOOR * abs(usual))
    return Band(usual, usual - half, usual + half)


def has_regressed(least: float, most: float, found: Band | None, better: Better) -> bool:
    """Only if even the best repetition lies outside: one slow repetition is not a slower system."""
    if found is None or better == "neither":
        return False
    return most < found.low if better == "higher" else least > found.high
