"""Runs of benchmarks, kept for more than a year. Their figures are in `figures.py`."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, cast

from redis import Redis

from config import keys
from tasks.benchmarks.figures import KEPT_S, SHOWN, known
from tasks.benchmarks.model import Trigger

RunState = Literal["queued", "running", "done", "failed", "cancelled", "skipped"]
ENDED: tuple[RunState, ...] = ("done", "failed", "cancelled", "skipped")
#: Runs that are kept, and how many that were skipped.
MOST_RUNS, MOST_SKIPPED = 1000, 100
#: A run's record tells where its report lies, so it outlives the time when that is removed.
RECORD_S = KEPT_S + 30 * 86400
#: Seconds for which one that was skipped is kept.
SKIPPED_S = 31 * 86400


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
    regressions: int = 0

    @classmethod
    def from_record(cls, text: str) -> Self:
        record: dict[str, Any] = json.loads(text)
        return cls(**known(cls, record) | {"files": tuple(record["files"])})


class History:
    def __init__(self, state: Redis) -> None:
        self._state = state

    def now(self) -> float:
        seconds, micros = self._state.time()
        return seconds + micros / 1e6

    def add(self, run: Run) -> bool:
        """Whether it is new: a run of this id is added once."""
        pipeline = self._state.pipeline()
        is_skipped = run.state == "skipped"
        pipeline.set(keys.benchmark(run.id), _record(run), nx=True, ex=SKIPPED_S if is_skipped else RECORD_S)
        if is_skipped:
            pipeline.zadd(keys.benchmarks_skipped(), {run.id: run.created_at})
            pipeline.zremrangebyrank(keys.benchmarks_skipped(), 0, -MOST_SKIPPED - 1)
        else:
            pipeline.zadd(keys.benchmarks(), {run.id: run.created_at})
        return bool(pipeline.execute()[0])

    def change(self, run: Run, **values: Any) -> Run:
        changed = replace(run, **values)
        self._state.set(keys.benchmark(run.id), _record(changed), xx=True, ex=RECORD_S)
        return changed

    def outdated(self) -> list[Run]:
        """Runs that are not to be kept any more."""
        ids = dict.fromkeys(self._state.zrange(keys.benchmarks(), 0, -MOST_RUNS - 1))
        ids |= dict.fromkeys(self._state.zrangebyscore(keys.benchmarks(), "-inf", self.now() - KEPT_S))
        return [self.get(str(run)) or Run(str(run), "", "request", "failed", 0.0) for run in ids]

    def forget(self, run: Run) -> None:
        pipeline = self._state.pipeline()
        pipeline.zrem(keys.benchmarks(), run.id)
        pipeline.delete(keys.benchmark(run.id), keys.benchmark_figures(run.id))
        pipeline.execute()

    def get(self, run: str) -> Run | None:
        text = self._state.get(keys.benchmark(run))
        return Run.from_record(str(text)) if text else None

    def newest(self, number: int = SHOWN, skipped: bool = True) -> list[Run]:
        """Newest first, with those that were skipped or without."""
        at: dict[str, float] = {}
        for place in (keys.benchmarks(), keys.benchmarks_skipped())[: 1 + skipped]:
            at |= cast("list[tuple[str, float]]", self._state.zrevrange(place, 0, number - 1, withscores=True))
        names = sorted(at, key=lambda name: at[name], reverse=True)[:number]
        texts = self._state.mget([keys.benchmark(name) for name in names]) if names else []
        return [Run.from_record(str(text)) for text in texts if text]


def _record(run: Run) -> str:
    return json.dumps(asdict(run))
