"""Repetitions with their spread: machines here are small and noisy. And the lines that say what came of them."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

#: Names the file that lines are collected in.
COLLECTED = "BENCH_COLLECTED"


@dataclass(frozen=True, slots=True)
class Spread:
    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.middle:.4g} ({self.least:.4g} to {self.most:.4g})"


def repeat(measure: Callable[[], float], times: int = 5) -> Spread:
    return spread([measure() for _ in range(times)])


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def in_turn(*measures: Callable[[], float], times: int = 3) -> list[Spread]:
    """Several measures by turns, so that what else the machine does touches all of them."""
    rounds = [[measure() for measure in measures] for _ in range(times)]
    return [spread(values) for values in zip(*rounds, strict=True)]


def line(name: str, value: float | Spread, target: str) -> None:
    """A figure beside its target; also to the file that `python -m bench` collects them in."""
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    print(f"{name:<64} {shown:>12}   target {target}", flush=True)
    if collected := os.environ.get(COLLECTED):
        with open(collected, "a") as file:
            number = value.middle if isinstance(value, Spread) else value
            file.write(json.dumps({"name": name, "value": number, "target": target}) + "\n")
