"""Regression test for figures: compares a new value with the spread of earlier runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median
from typing import Literal

from tasks.measurement.spread import Spread

#: Whether a larger figure is an improvement.
Better = Literal["higher", "lower", "neither"]

#: Maximum number of earlier runs that are compared, and the minimum for a comparison.
LAST, LEAST = 10, 5
#: Half the width of the band, in deviations of the earlier runs, by their number: few runs estimate their own variance
#: badly. A figure with normally distributed noise leaves the band on the bad side in 1 run of 500; found by simulation.
DEVIATIONS = {5: 15.8, 6: 10.2, 7: 7.9, 8: 6.7, 9: 6.0, 10: 5.5}
#: Minimum of half the width of the band, as a share of the usual value.
FLOOR = 0.05


@dataclass(frozen=True, slots=True)
class Band:
    """Range of values that the noise of earlier runs explains."""

    usual: float
    low: float
    high: float


def band(earlier: Sequence[float]) -> Band | None:
    """Compute the band of a figure from its values in earlier runs, oldest first; None if there are fewer than
    `LEAST`."""
    values = list(earlier)[-LAST:]
    if len(values) < LEAST:
        return None
    usual = median(values)
    near = sorted(abs(value - usual) for value in values)[:-1]  # a single outlier does not widen the band
    half = max(DEVIATIONS[len(values)] * sqrt(fmean(each**2 for each in near)), FLOOR * abs(usual))
    return Band(usual, usual - half, usual + half)


def has_regressed(measured: Spread, found: Band | None, better: Better) -> bool:
    """Return whether even the best repetition lies outside the band: a single slow repetition is not a slower
    system."""
    if found is None or better == "neither":
        return False
    return measured.most < found.low if better == "higher" else measured.least > found.high
