"""Whether a figure has got worse than its own noise explains."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median

from tasks.benchmarks.model import Better

#: Earlier runs that are looked at, and without so many of which nothing is said.
LAST, LEAST = 10, 5
#: Half a band, in deviations of the earlier runs, by their number: what few runs vary by says little of what they may.
#: So wide that a figure whose noise is normal leaves it on the bad side in one run of 500; found by simulation.
DEVIATIONS = {5: 15.8, 6: 10.2, 7: 7.9, 8: 6.7, 9: 6.0, 10: 5.5}
#: And never narrower than this share of the usual value.
FLOOR = 0.05


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
    near = sorted(abs(value - usual) for value in values)[:-1]  # one outlier does not widen a band
    half = max(DEVIATIONS[len(values)] * sqrt(fmean(each**2 for each in near)), FLOOR * abs(usual))
    return Band(usual, usual - half, usual + half)


def has_regressed(least: float, most: float, found: Band | None, better: Better) -> bool:
    """Only if even the best repetition lies outside: one slow repetition is not a slower system."""
    if found is None or better == "neither":
        return False
    return most < found.low if better == "higher" else least > found.high
