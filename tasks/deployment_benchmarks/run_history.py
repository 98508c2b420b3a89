"""Records of benchmark runs in Redis, kept for more than a year. Their figures are in `figure_history.py`."""

import json
import logging
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, cast

from redis import Redis

from config import keys
from config.schedule import LATE_S, SLOT
from tasks.deployment_benchmarks.figure_history import KEPT_S, SHOWN, known
from tasks.deployment_benchmarks.model import Trigger
from tasks.jobs.states import CANCELLED, DONE, FAILED

RunState = Literal["queued", "running", "done", "failed", "cancelled", "skipped"]
ENDED: tuple[RunState, ...] = (DONE, FAILED, CANCELLED, "skipped")
#: Maximum number of runs that are kept, and of skipped runs.
MOST_RUNS, MOST_SKIPPED = 1000, 100
#: TTL of a run's record: longer than that of its report, because the record has the path for deleting the report.
RECORD_S = KEPT_S + 30 * 86400
#: TTL of the record of a skipped run, in seconds.
SKIPPED_S = 31 * 86400
UNBEGUN = f"no worker started it within {LATE_S // 60} minutes. Is `python -m workers.launch benchmark` running?"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """Record of a benchmark run."""

    id: str
    name: str
    trigger: Trigger
    state: RunState
    created_at: float
    due_at: float | None = None
    """Scheduled time; None for a requested run."""
    note: str = ""
    job: str = ""
    total: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    folder: str = ""
    files: tuple[str, ...] = ()
    regressions: int = 0

    def is_late(self, at: float) -> bool:
        """Return whether the run is too late to be started at this time."""
        return at - (self.due_at or self.created_at) > LATE_S

    @classmethod
    def from_record(cls, text: str) -> Self:
        record: dict[str, Any] = json.loads(text)
        return cls(**known(cls, record) | {"files": tuple(record["files"])})


class RunHistory:
    def __init__(self, state: Redis) -> None:
        self._state = state

    def now(self) -> float:
        seconds, micros = self._state.time()
        return seconds + micros / 1e6

    def add(self, run: Run) -> bool:
        """Store a new run. Idempotent: returns False if a run with this id exists."""
        pipeline = self._state.pipeline()
        pipeline.set(keys.benchmark(run.id), _record(run), nx=True, ex=RECORD_S)
        pipeline.zadd(keys.benchmarks(), {run.id: run.created_at})
        return bool(pipeline.execute()[0])

    def skip(self, run: Run, note: str) -> Run:
        """Record that the run is skipped, whether or not it was added before."""
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
        """Record that no worker started the run in time.

        Call it before the run's job is cancelled: otherwise the run counts as cancelled."""
        log.warning("benchmark run %s of %s is abandoned: %s", run.id, run.name, UNBEGUN)
        if run.due_at:
            return self.skip(run, f"Due at {time.strftime(SLOT, time.gmtime(run.due_at))}, skipped: {UNBEGUN}")
        return self.change(run, state="failed", note=f"Abandoned: {UNBEGUN}", ended_at=self.now())

    def outdated(self) -> list[Run]:
        """Return the runs beyond the limits of number and age."""
        ids = dict.fromkeys(self._state.zrange(keys.benchmarks(), 0, -MOST_RUNS - 1))
        ids |= dict.fromkeys(self._state.zrangebyscore(keys.benchmarks(), "-inf", self.now() - KEPT_S))
        return [self.get(str(run)) or Run(str(run), "", "request", "failed", 0.0) for run in ids]

    def delete(self, run: Run) -> None:
        pipeline = self._state.pipeline()
        pipeline.zrem(keys.benchmarks(), run.id)
        pipeline.delete(keys.benchmark(run.id), keys.benchmark_figures(run.id))
        pipeline.execute()

    def get(self, run: str) -> Run | None:
        text = self._state.get(keys.benchmark(run))
        return Run.from_record(str(text)) if text else None

    def newest(self, number: int = SHOWN, skipped: bool = True) -> list[Run]:
        """Return the latest runs, newest first, with or without skipped runs."""
        at: dict[str, float] = {}
        for index in (keys.benchmarks(), keys.benchmarks_skipped())[: 1 + skipped]:
            at |= cast("list[tuple[str, float]]", self._state.zrevrange(index, 0, number - 1, withscores=True))
        names = sorted(at, key=lambda name: at[name], reverse=True)[:number]
        texts = self._state.mget([keys.benchmark(name) for name in names]) if names else []
        return [Run.from_record(str(text)) for text in texts if text]


def _record(run: Run) -> str:
    return json.dumps(asdict(run))
