"""History of the figures of benchmark runs, kept for more than a year, for comparisons and for the dashboard.

Each figure has a separate history for each basis, so that neither a comparison nor a page reads every run.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from redis import Redis

from config import keys
from tasks.measurement.noise import LAST, Better
from tasks.measurement.spread import Spread

#: Retention of figures, in seconds.
KEPT_S = 400 * 86400
#: Number of runs on a page, and number of values kept for each figure.
SHOWN = 100
#: Seconds for which a regression is reported, unless the figure is measured again.
REPORTED_S = 31 * 86400


@dataclass(frozen=True, slots=True)
class FigureOfRun:
    """A figure of a run, with the band of earlier runs that it was compared with."""

    figure: str
    """`<scenario>/<case>/<name>`."""
    unit: str
    better: Better
    value: float
    """The median of its repetitions."""
    least: float
    most: float
    basis: str
    """Hash of machine, engine and parameters: figures with the same basis are compared."""
    is_disturbed: bool = False
    usual: float | None = None
    """Median of earlier runs; like the bounds of their noise, None while there are too few runs."""
    low: float | None = None
    high: float | None = None
    is_regression: bool = False

    @property
    def spread(self) -> Spread:
        return Spread(self.value, self.least, self.most)


@dataclass(frozen=True, slots=True)
class Point:
    """Value of a figure in a run."""

    run: str
    at: float
    value: float
    least: float
    most: float
    is_disturbed: bool


@dataclass(frozen=True, slots=True)
class LatestFigure:
    """A figure in its latest undisturbed run, or in its latest run if every run was disturbed."""

    run: str
    benchmark: str
    at: float
    figure: FigureOfRun


class FigureHistory:
    """Figures of runs in Redis: their history, and the latest value of each."""

    def __init__(self, state: Redis) -> None:
        self._state = state

    def add(self, run: str, benchmark: str, at: float, figures: Sequence[FigureOfRun]) -> None:
        """Store the figures of a run that was created at this time. Idempotent: replaces the run's earlier values."""
        histories = [keys.benchmark_figure(each.figure, each.basis) for each in figures]
        stored = self._stored(run, at, histories)
        latest = self._state.hgetall(keys.benchmark_standings())
        expired = [name for name, text in latest.items() if json.loads(str(text))["at"] < at - KEPT_S]
        pipeline = self._state.pipeline()
        pipeline.set(keys.benchmark_figures(run), json.dumps([asdict(each) for each in figures]), ex=KEPT_S)
        for each, history, before in zip(figures, histories, stored, strict=True):
            point = Point(run, at, each.value, each.least, each.most, each.is_disturbed)
            if before:
                pipeline.zrem(history, *before)
            pipeline.zadd(history, {json.dumps(asdict(point)): at})
            pipeline.zremrangebyrank(history, 0, -SHOWN - 1)
            pipeline.expire(history, KEPT_S)
            record = json.dumps(asdict(LatestFigure(run, benchmark, at, each)))
            # A disturbed value is no evidence for or against a regression: it never replaces a stored value.
            store = pipeline.hsetnx if each.is_disturbed else pipeline.hset
            store(keys.benchmark_standings(), f"{each.figure} {each.basis}", record)
        if expired:
            pipeline.hdel(keys.benchmark_standings(), *expired)
        pipeline.expire(keys.benchmark_standings(), KEPT_S)
        pipeline.execute()

    def _stored(self, run: str, at: float, histories: Sequence[str]) -> list[list[str]]:
        """Return the points that a run of this time already has in each history."""
        pipeline = self._state.pipeline(transaction=False)
        for history in histories:
            pipeline.zrangebyscore(history, at, at)
        return [[text for text in found if _point(text).run == run] for found in pipeline.execute()]

    def of_run(self, run: str) -> list[FigureOfRun]:
        text = self._state.get(keys.benchmark_figures(run))
        return [_figure(each) for each in json.loads(str(text))] if text else []

    def points(self, figures: Sequence[FigureOfRun]) -> list[list[Point]]:
        """Return, for each figure, the stored values with the same basis, oldest first."""
        pipeline = self._state.pipeline(transaction=False)
        for each in figures:
            pipeline.zrange(keys.benchmark_figure(each.figure, each.basis), 0, -1)
        return [[_point(str(text)) for text in found] for found in pipeline.execute()]

    def earlier(self, figure: str, basis: str, run: str, at: float) -> list[float]:
        """Return the latest undisturbed values of a figure before a run of this time, oldest first."""
        found = self._state.zrangebyscore(keys.benchmark_figure(figure, basis), "-inf", at)
        points = [_point(str(text)) for text in found]
        return [each.value for each in points if each.run != run and not each.is_disturbed][-LAST:]

    def latest(self) -> list[LatestFigure]:
        """Return the latest value of every figure, sorted by name."""
        found = sorted(cast(dict[str, str], self._state.hgetall(keys.benchmark_standings())).items())
        return [_latest(json.loads(text)) for _, text in found]

    def regressions(self) -> list[LatestFigure]:
        """Return the figures whose latest undisturbed run is worse than the noise of earlier runs explains."""
        seconds, _ = self._state.time()
        since = seconds - REPORTED_S
        return [each for each in self.latest() if each.figure.is_regression and each.at > since]


def _figure(record: dict[str, Any]) -> FigureOfRun:
    return FigureOfRun(**known(FigureOfRun, record))


def _point(text: str) -> Point:
    return Point(**known(Point, json.loads(text)))


def _latest(record: dict[str, Any]) -> LatestFigure:
    return LatestFigure(**known(LatestFigure, record) | {"figure": _figure(record["figure"])})


def known(kind: type, record: dict[str, Any]) -> dict[str, Any]:
    """A newer process may have written more than this one knows."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in record.items() if name in names}
