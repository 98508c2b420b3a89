"""Runs and their figures, kept for more than a year: what a figure is compared with, and what is shown of it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self

from redis import Redis

from config import keys
from tasks.benchmarks.model import Better, Trigger
from tasks.benchmarks.noise import LAST

RunState = Literal["queued", "running", "done", "failed", "cancelled", "skipped"]
ENDED: tuple[RunState, ...] = ("done", "failed", "cancelled", "skipped")
#: Runs that are kept, and for how many seconds.
MOST_RUNS = 1000
KEPT_S = 400 * 86400
#: Runs whose figures are shown.
SHOWN = 100


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
class Run:
    id: str
    name: str
    trigger: Trigger
    state: RunState
    created_at: float
    note: str = ""
    job: str = ""
    total: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    folder: str = ""
    files: tuple[str, ...] = ()
    figures: tuple[FigureOfRun, ...] = field(default=(), repr=False)

    @property
    def regressions(self) -> int:
        return sum(figure.is_regression for figure in self.figures)

    @classmethod
    def from_record(cls, text: str) -> Self:
        record: dict[str, Any] = json.loads(text)
        figures = tuple(FigureOfRun(**_known(FigureOfRun, each)) for each in record["figures"])
        return cls(**_known(cls, record) | {"files": tuple(record["files"]), "figures": figures})


class History:
    def __init__(self, state: Redis) -> None:
        self._state = state

    def now(self) -> float:
        seconds, micros = self._state.time()
        return seconds + micros / 1e6

    def add(self, run: Run) -> bool:
        """Whether it is new: a run of this id is added once."""
        if not self._state.set(keys.benchmark(run.id), _record(run), nx=True, ex=KEPT_S):
            return False
        self._state.zadd(keys.benchmarks(), {run.id: run.created_at})
        self._state.zremrangebyrank(keys.benchmarks(), 0, -MOST_RUNS - 1)
        return True

    def change(self, run: Run, **values: Any) -> Run:
        changed = replace(run, **values)
        self._state.set(keys.benchmark(run.id), _record(changed), xx=True, ex=KEPT_S)
        return changed

    def get(self, run: str) -> Run | None:
        text = self._state.get(keys.benchmark(run))
        return Run.from_record(str(text)) if text else None

    def newest(self, number: int = SHOWN) -> list[Run]:
        """Newest first."""
        names = [str(name) for name in self._state.zrevrange(keys.benchmarks(), 0, number - 1)]
        texts = self._state.mget([keys.benchmark(name) for name in names]) if names else []
        return [Run.from_record(str(text)) for text in texts if text]

    def earlier(self, figure: str, basis: str, before: Run, runs: Sequence[Run]) -> list[float]:
        """The last values of a figure before a run, oldest first, that may be compared with it."""
        found = [
            each.value
            for run in runs
            if run.state == "done" and run.id != before.id and run.created_at <= before.created_at
            for each in run.figures
            if each.figure == figure and each.basis == basis and not each.is_disturbed
        ]
        return found[:LAST][::-1]

    def figures(self, runs: Sequence[Run]) -> Iterator[tuple[FigureOfRun, list[tuple[Run, FigureOfRun]]]]:
        """Each figure as its newest run has it, with all that may be compared with it, oldest first."""
        points: dict[str, list[tuple[Run, FigureOfRun]]] = {}
        for run in runs:
            for each in run.figures if run.state == "done" else ():
                points.setdefault(each.figure, []).append((run, each))
        for found in points.values():
            # What others disturbed says nothing: neither that a figure got worse, nor that it did not.
            newest = next((each for _, each in found if not each.is_disturbed), found[0][1])
            yield newest, [(run, each) for run, each in reversed(found) if each.basis == newest.basis]

    def regressions(self, runs: Sequence[Run]) -> list[tuple[Run, FigureOfRun]]:
        """Figures whose newest run, of these, newest first, was worse than the runs before explain."""
        return [
            next(point for point in reversed(points) if point[1] is newest)
            for newest, points in self.figures(runs)
            if newest.is_regression
        ]


def _known(kind: type, record: dict[str, Any]) -> dict[str, Any]:
    """A newer process may have written more than this one knows."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in record.items() if name in names}


def _record(run: Run) -> str:
    return json.dumps(asdict(run))
