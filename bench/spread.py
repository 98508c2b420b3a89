"""Repetitions with their spread: machines here are small and noisy. And the lines that say what came of them."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

#: Names the file that lines are collected in.
COLLECTED = "BENCH_COLLECTED"
#: Set, everything is measured small and once: to see that it runs.
BRIEF = "BENCH_BRIEF"
_TARGET = re.compile(r"([<>]=?)?\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Spread:
    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        spread = f" ({short(self.least)} to {short(self.most)})" if self.least < self.most else ""
        return f"{short(self.middle)}{spread}"

    def over(self, other: "Spread | float") -> "Spread":
        """The ratio of the medians; its range is the widest that the two ranges leave room for."""
        if not isinstance(other, Spread):
            other = Spread(other, other, other)
        return Spread(self.middle / other.middle, self.least / other.most, self.most / other.least)


def brief(number: int, small: int = 1) -> int:
    """How often, or how many: `number`, or `small` where it is only to be seen that it runs."""
    return small if os.environ.get(BRIEF) else number


def short(value: float) -> str:
    """With four digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def repeat(measure: Callable[[], float], times: int = 5) -> Spread:
    return spread([measure() for _ in range(times)])


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def in_turn(*measures: Callable[[], float], times: int = 3) -> list[Spread]:
    """Several measures by turns, so that what else the machine does touches all of them."""
    rounds = [[measure() for measure in measures] for _ in range(times)]
    return [spread(values) for values in zip(*rounds, strict=True)]


def is_met(value: float, target: str) -> bool:
    """Of `>= 2`, `< 1.25`, a bare number, which is to be reached exactly, or `none`."""
    if target == "none":
        return True
    match = _TARGET.fullmatch(target)
    assert match, f"{target!r} is no target"
    sign, bound = match[1] or "=", float(match[2])
    return {">=": value >= bound, "<=": value <= bound, "<": value < bound, ">": value > bound, "=": value == bound}[
        sign
    ]


def line(name: str, value: float | Spread, target: str) -> None:
    """A figure beside its target."""
    found = value if isinstance(value, Spread) else Spread(value, value, value)
    missed = "" if is_met(found.middle, target) else ", missed"
    print(f"{name:<64} {found!s:>24}   target {target}{missed}", flush=True)
    _collect({"name": name, "value": found.middle, "least": found.least, "most": found.most, "target": target})


def note(text: str) -> None:
    """What a ratio was made of, or measured with."""
    print(f"  {text}", flush=True)
    _collect({"note": text})


def _collect(told: dict[str, object]) -> None:
    """For the table that `python -m bench` makes."""
    if collected := os.environ.get(COLLECTED):
        with open(collected, "a") as file:
            file.write(json.dumps(told) + "\n")
