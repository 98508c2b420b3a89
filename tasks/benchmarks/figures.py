"""Figures of benchmark runs, kept for more than a year: what each is compared with, and what is shown of it.

Each has a history of its own for every basis, so that neither looking nor comparing reads all runs.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from redis import Redis

from config import keys
from tasks.benchmarks.model import Better
from tasks.benchmarks.noise import LAST

#: Seconds for which figures are kept.
KEPT_S = 400 * 86400
#: Runs, and values of a figure, that are shown.
SHOWN = 100
#: Seconds for which a figure that got worse is told so, unless it is measured again.
TOLD_S = 31 * 86400


@dataclass(frozen=True, slots=True)
class FigureOfRun:
    figure: str
    """`<scenario>/<case>/<name>`."""
    unit: str
    better: Better
    value: float
    """The median of its repetitions."""
    least: float
    most: float
    basis: str
    """Figures are compared where this is the same: machine, engine and parameters."""
    is_disturbed: bool = False
    usual: float | None = None
    """Of the runs before, with the band that their noise makes; None while there are too few."""
    low: float | None = None
    high: float | None = None
    is_regression: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """What one run brought for a figure."""

    run: str
    at: float
    value: float
    least: float
    most: float
    is_disturbed: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """A figure as its last undisturbed run has it; as a disturbed one has it where there is no other."""

    run: str
    benchmark: str
    at: float
    figure: FigureOfRun


class Figures:
    def __init__(self, state: Redis) -> None:
        self._state = state

    def add(self, run: str, benchmark: str, at: float, figures: Sequence[FigureOfRun]) -> None:
        """What a run that was asked for at this time brought. Safe to repeat: what it brought before is replaced."""
        places = [keys.benchmark_figure(each.figure, each.basis) for each in figures]
        told = self._told(run, at, places)
        standings = self._state.hgetall(keys.benchmark_standings())
        old = [name for name, text in standings.items() if json.loads(str(text))["at"] < at - KEPT_S]
        pipeline = self._state.pipeline()
        pipeline.set(keys.benchmark_figures(run), json.dumps([asdict(each) for each in figures]), ex=KEPT_S)
        for each, place, before in zip(figures, places, told, strict=True):
            point = Point(run, at, each.value, each.least, each.most, each.is_disturbed)
            if before:
                pipeline.zrem(place, *before)
            pipeline.zadd(place, {json.dumps(asdict(point)): at})
            pipeline.zremrangebyrank(place, 0, -SHOWN - 1)
            pipeline.expire(place, KEPT_S)
            standing = json.dumps(asdict(Standing(run, benchmark, at, each)))
            # What others disturbed says nothing: neither that a figure got worse, nor that it did not.
            tell = pipeline.hsetnx if each.is_disturbed else pipeline.hset
            tell(keys.benchmark_standings(), f"{each.figure} {each.basis}", standing)
        if old:
            pipeline.hdel(keys.benchmark_standings(), *old)
        pipeline.expire(keys.benchmark_standings(), KEPT_S)
        pipeline.execute()

    def _told(self, run: str, at: float, places: Sequence[str]) -> list[list[str]]:
        """Points that the run, of this time, has in each of these places."""
        pipeline = self._state.pipeline(transaction=False)
        for place in places:
            pipeline.zrangebyscore(place, at, at)
        return [[text for text in found if _point(text).run == run] for found in pipeline.execute()]

    def of_run(self, run: str) -> list[FigureOfRun]:
        text = self._state.get(keys.benchmark_figures(run))
        return [_figure(each) for each in json.loads(str(text))] if text else []

    def points(self, figures: Sequence[FigureOfRun]) -> list[list[Point]]:
        """Of each of them all values that may be compared with it, oldest first."""
        pipeline = self._state.pipeline(transaction=False)
        for each in figures:
            pipeline.zrange(keys.benchmark_figure(each.figure, each.basis), 0, -1)
        return [[_point(str(text)) for text in found] for found in pipeline.execute()]

    def earlier(self, figure: str, basis: str, run: str, at: float) -> list[float]:
        """The last values of a figure before a run of this time, oldest first, that may be compared with it."""
        found = self._state.zrangebyscore(keys.benchmark_figure(figure, basis), "-inf", at)
        points = [_point(str(text)) for text in found]
        return [each.value for each in points if each.run != run and not each.is_disturbed][-LAST:]

    def standings(self) -> list[Standing]:
        """Of every figure, by name."""
        found = sorted(cast(dict[str, str], self._state.hgetall(keys.benchmark_standings())).items())
        return [_standing(json.loads(text)) for _, text in found]

    def regressions(self) -> list[Standing]:
        """Figures whose last undisturbed run was worse than the runs before explain."""
        seconds, _ = self._state.time()
        since = seconds - TOLD_S
        return [each for each in self.standings() if each.figure.is_regression and each.at > since]


def _figure(record: dict[str, Any]) -> FigureOfRun:
    return FigureOfRun(**known(FigureOfRun, record))


def _point(text: str) -> Point:
    return Point(**known(Point, json.loads(text)))


def _standing(record: dict[str, Any]) -> Standing:
    return Standing(**known(Standing, record) | {"figure": _figure(record["figure"])})


def known(kind: type, record: dict[str, Any]) -> dict[str, Any]:
    """A newer process may have written more than this one knows."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in record.items() if name in names}
