"""Repeat measurements, and print and record each figure beside its target."""

import json
import os
import re
from collections.abc import Callable

from tasks.measurement.spread import Spread, spread_of

#: Environment variable with the path of the file in which figures are recorded.
COLLECTED = "BENCH_COLLECTED"
#: Environment variable that turns measurements into smoke tests: small workloads, a single repetition.
BRIEF = "BENCH_BRIEF"
_TARGET = re.compile(r"([<>]=?)?\s*([0-9.]+)")


def brief(number: int, small: int = 1) -> int:
    """Return `number`, or `small` in a smoke test."""
    return small if os.environ.get(BRIEF) else number


def repeat(measure: Callable[[], float], times: int = 5) -> Spread:
    """Measure `times` times. Machines are small and noisy, so a figure is a median with a range."""
    return spread_of([measure() for _ in range(times)])


def in_turn(*measures: Callable[[], float], times: int = 3) -> list[Spread]:
    """Run several measurements alternately, so that other load on the machine affects them equally."""
    rounds = [[measure() for measure in measures] for _ in range(times)]
    return [spread_of(values) for values in zip(*rounds, strict=True)]


def is_met(value: float, target: str) -> bool:
    """Compare a value with a target: `>= 2`, `< 1.25`, a bare number (equality), or `none` (always met)."""
    if target == "none":
        return True
    match = _TARGET.fullmatch(target)
    assert match, f"cannot parse the target {target!r}"
    sign, bound = match[1] or "=", float(match[2])
    return {">=": value >= bound, "<=": value <= bound, "<": value < bound, ">": value > bound, "=": value == bound}[
        sign
    ]


def line(name: str, value: float | Spread, target: str) -> None:
    """Print a figure beside its target, and record it."""
    spread = value if isinstance(value, Spread) else Spread(value, value, value)
    missed = "" if is_met(spread.middle, target) else ", missed"
    print(f"{name:<64} {spread!s:>24}   target {target}{missed}", flush=True)
    _record({"name": name, "value": spread.middle, "least": spread.least, "most": spread.most, "target": target})


def note(text: str) -> None:
    """Print and record a detail, such as the two sides of a ratio."""
    print(f"  {text}", flush=True)
    _record({"note": text})


def _record(record: dict[str, object]) -> None:
    """Append a record to the file from which `python -m bench` makes its tables."""
    if collected := os.environ.get(COLLECTED):
        with open(collected, "a") as file:
            file.write(json.dumps(record) + "\n")
