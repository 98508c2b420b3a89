"""Simulated engine and its stages: sequential items, concurrent items, or whole groups."""

import hashlib
import heapq
import os
import random
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

from tasks.jobs.model import STOPPED, ItemError, Result, StageLimits
from tasks.jobs.stage import BatchStage, Context, Feed, Key, Stage, StreamStage, Work
from tasks.jobs.state.cache import canonical
from tasks.simulated.model import SimulatedItem, SimulatedSpec, SimulatedStage

#: Seconds between two checks for cancellation.
LOOK_S = 0.1


class Engine:
    """Simulates a model: sleeps for the cost of an item, and fails, crashes or hangs as the item specifies."""

    def __init__(self, journal: Path | None, slowdown: float) -> None:
        self.slowdown = slowdown
        self._journal = journal

    def compute(self, context: Context, work: Work[SimulatedItem], cost_s: float | None = None) -> Result:
        """Compute an item. `cost_s` overrides the item's own cost."""
        item, spec = work.item, cast(SimulatedSpec, work.spec)
        cost_s = next(each for each in (cost_s, item.cost_s, spec.cost_s) if each is not None)
        chance = random.Random(f"{spec.seed}:{canonical(item.x)}:{work.index}")
        if item.hang:
            _hang(item.hang)
        if item.crash or chance.random() < spec.crash_rate:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.sleep(cost_s, context):
            return STOPPED
        if self._journal:
            with self._journal.open("a") as journal:
                journal.write(f"{canonical(item.x)}\n")
        if item.fail or chance.random() < spec.failure_rate:
            return Result(error=ItemError("simulated_failure", "This item was told to fail."))
        if work.attempts < item.fail_times:
            return Result(error=ItemError("simulated_outage", "This attempt was told to fail.", retryable=True))
        return Result(score=score(item), value={"x": item.x, "pad": "x" * spec.result_bytes})

    def sleep(self, seconds: float, context: Context) -> bool:
        """Sleep, but stop at the end of the job; return False if the job ended."""
        end = time.monotonic() + seconds * self.slowdown
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_S))
            if context.is_cancelled():
                return False
        return True


class _SimulatedStage(Stage[SimulatedItem]):
    def __init__(
        self, engine: Engine, spec: SimulatedSpec, asked: SimulatedStage, limits: StageLimits, then: str
    ) -> None:
        """`then`: name of the next stage."""
        super().__init__(asked.name, asked.pool, limits, grouped=asked.grouped)
        self._engine = engine
        self._spec = spec
        self._then = then

    def key(self, work: Work[SimulatedItem]) -> Key | None:
        spec = self._spec
        if not spec.cacheable or self.grouped:
            return None
        return {"x": work.item.x, "seed": spec.seed, "result_bytes": spec.result_bytes}

    def advance(self, work: Work[SimulatedItem], result: Result) -> Result:  # noqa: ARG002  # independent of the item
        return replace(result, next=self._then)


class SleepStage(_SimulatedStage, BatchStage[SimulatedItem]):
    """Runs the items of a batch sequentially."""

    def run(self, context: Context, batch: Sequence[Work[SimulatedItem]]) -> Sequence[Result]:
        if not self._engine.sleep(self._spec.batch_cost_s, context):
            return [STOPPED] * len(batch)
        return [self._engine.compute(context, work) for work in batch]


class GroupStage(_SimulatedStage, BatchStage[SimulatedItem]):
    """Finishes whole groups, or the trials of items."""

    def run(self, context: Context, batch: Sequence[Work[SimulatedItem]]) -> Sequence[Result]:
        if not self._engine.sleep(self._spec.batch_cost_s, context):
            return [STOPPED] * len(batch)
        return _finish_groups(batch) if self._spec.trials == 1 else _finish_trials(batch, self._spec.trials)


class RunningStage(_SimulatedStage, StreamStage[SimulatedItem]):
    """Runs items concurrently: each takes its own time, independent of the number of running items."""

    def stream(self, context: Context, feed: Feed[SimulatedItem]) -> None:
        running: list[tuple[float, int, Work[SimulatedItem]]] = []
        room, order = 1, count()
        while not context.is_cancelled():
            now = time.monotonic()
            for work in feed.more(room - len(running)):
                room = work.spec.batch_items
                cost_s = work.spec.cost_s if work.item.cost_s is None else work.item.cost_s
                heapq.heappush(running, (now + cost_s * self._engine.slowdown, next(order), work))
            if not running:
                return
            time.sleep(max(0.0, min(running[0][0] - now, LOOK_S / 10)))
            while running and running[0][0] <= time.monotonic():
                _, _, work = heapq.heappop(running)
                feed.done(work, self._engine.compute(context, work, cost_s=0.0))


def score(item: SimulatedItem) -> float:
    """Return a number in [0, 1) that depends only on `x`."""
    return int.from_bytes(hashlib.sha256(canonical(item.x).encode()).digest()[:6]) / 2**48


def _hang(how: str) -> None:
    while how == "sleep":
        time.sleep(1)
    re.match(r"(a+)+$", "a" * 64 + "b")  # holds the interpreter lock practically forever


def _finish_groups(batch: Sequence[Work[SimulatedItem]]) -> list[Result]:
    """Add the group's mean to each item's score; items that failed earlier stay failed and do not count."""
    groups: dict[str, list[float]] = {}
    for work in batch:
        carried = work.carry or {}
        if carried.get("status") == "ok":
            groups.setdefault(str(work.item.group_id), []).append(carried["score"])
    results = []
    for work in batch:
        carried = work.carry or {}
        if carried.get("status") != "ok":
            failed = carried.get("error") or {"type": "lost", "message": "No result came with this item."}
            results.append(Result(error=ItemError(failed["type"], failed["message"])))
            continue
        members = groups[str(work.item.group_id)]
        mean = sum(members) / len(members)
        results.append(
            Result(
                score=carried["score"],
                parts={"mean": mean, "members": float(len(members))},
                value=carried["value"],
            )
        )
    return results


def _finish_trials(batch: Sequence[Work[SimulatedItem]], trials: int) -> list[Result]:
    """Return the mean over the trials of an item that ran; if no trial ran, the item fails."""
    items: dict[int, list[dict[str, Any]]] = {}
    for work in batch:
        items.setdefault(work.index // trials, []).append(work.carry or {})
    outcomes = {}
    for item, carried in items.items():
        ran = [each for each in carried if each.get("status") == "ok"]
        if not ran:
            failed = carried[0].get("error") or {"type": "lost", "message": "No result came with this item."}
            outcomes[item] = Result(error=ItemError(failed["type"], failed["message"]))
        else:
            mean = sum(each["score"] for each in ran) / len(ran)
            outcomes[item] = Result(
                score=mean, parts={"trials": float(len(ran))}, cached=all(each["cached"] for each in ran)
            )
    return [outcomes[work.index // trials] for work in batch]
