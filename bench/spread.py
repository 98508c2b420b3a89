"""Repetitions with their spread: machines here are small and noisy."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.middle:.4g} ({self.least:.4g} to {self.most:.4g})"


def repeat(measure: Callable[[], float], times: int = 5) -> Spread:
    values = sorted(measure() for _ in range(times))
    return Spread(median(values), values[0], values[-1])


def line(name: str, value: float | str, target: str) -> None:
    shown = f"{value:.2f}" if isinstance(value, float) else value
    print(f"{name:<64} {shown:>12}   target {target}", flush=True)
