"""Median, minimum and maximum of repeated measurements, and how they are printed."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of the repetitions of a measurement."""

    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        """Format the median with its range, in four digits; without a range if the repetitions are equal."""
        spread = f" ({self.range(4)})" if self.least < self.most else ""
        return f"{format_number(self.middle, 4)}{spread}"

    def range(self, digits: int = 3) -> str:
        """Format minimum and maximum: `0.98 to 1.2`."""
        return f"{format_number(self.least, digits)} to {format_number(self.most, digits)}"

    def over(self, other: "Spread | float") -> "Spread":
        """Return the ratio of the medians, with the widest range that the two ranges allow."""
        if not isinstance(other, Spread):
            other = Spread(other, other, other)
        return Spread(self.middle / other.middle, self.least / other.most, self.most / other.least)


def spread_of(values: Sequence[float]) -> Spread:
    """Return median, minimum and maximum of `values`, which must not be empty."""
    return Spread(median(values), min(values), max(values))


def format_number(value: float, digits: int = 3) -> str:
    """Format a figure for people: `digits` significant digits, from 1,000 on an integer with separators."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
