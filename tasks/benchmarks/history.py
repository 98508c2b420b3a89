"""Runs of benchmarks, kept for more than a year. Their figures are in `figures.py`."""

import json
import logging
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, cast

from redis import Redis

from config import keys
from config.schedule import LATE_S, SLOT
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
UNBEGUN = f"nobody began to measure it within {LATE_S // 60} minutes. Is `python -m workers.launch benchmark` running?"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    id: str
    name: str
    trigger: Trigger
    state: RunState
    created_at: float
    due_at: float | None = None
    """By its schedule; None for one that was requested."""
    note: str = ""
    job: str = ""
    total: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    folder: str = ""
    files: tuple[str, ...] = ()
    regressions: int = 0

    def is_late(self, at: float) -> bool:
        """Whether it is too late to begin it at this time."""
        return at - (self.due_at or self.created_at) > LATE_S

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
        pipeline.set(keys.benchmark(run.id), _record(run), nx=True, ex=RECORD_S)
        pipeline.zadd(keys.benchmarks(), {run.id: run.created_at})
        return bool(pipeline.execute()[0])

    def skip(self, run: Run, note: str) -> Run:
        """It is not run after all, whether it was added or not."""
        skipped = replace(run, state="skipped", note=note, ended_at=self.now())
        pipeline = self._state.pipeline()
        pipeline.set(keys.benchmark(run.id), _record(skipped), ex=SKIPPED_S)
        pipeline.zrem(keys.benchmarks(), run.id)
        pipeline.zadd(keys.benchmarks_skipped(), {run.id: run.created_at})
        pipeline.zremrangebyrank(keys.benchmarks_skipped(), 0, -MOST_SKIPPED - 1)
        pipeline.execute()
        return skipped

    def change(self, run: Run, **values: Any) -> Run:
        changed = replace(run, **values)
        self._state.set(keys.benchmark(run.id), _record(changed), xx=True, ex=RECORD_S)
        return changed

    def give_up(self, run: Run) -> Run:
        """Nobody began it in time. To be said before its job is cancelled: else it counts as cancelled itself."""
        log.warning("benchmark run %s of %s is given up: %s", run.id, run.name, UNBEGUN)
        if run.due_at:
            return self.skip(run, f"Due at {time.strftime(SLOT, time.gmtime(run.due_at))}, and skipped: {UNBEGUN}")
        return self.change(run, state="failed", note=f"It was given up: {UNBEGUN}", ended_at=self.now())

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
