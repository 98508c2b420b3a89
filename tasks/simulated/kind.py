"""The simulated engine. It sleeps instead of computing; all else, crashes included, is real."""

import hashlib
import heapq
import os
import random
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from tasks.jobs.cache import canonical
from tasks.jobs.kinds import Context, Feed, Work
from tasks.jobs.model import STOPPED, ItemError, Result, Stage
from tasks.simulated.model import SimulatedItem, SimulatedSpec

#: Seconds between two looks at whether the work is still wanted.
LOOK_S = 0.1


class Simulated:
    name = "simulated"
    spec_model = SimulatedSpec
    item_model = SimulatedItem

    def __init__(self, journal: Path | None = None, slowdown: float = 1.0) -> None:
        """`journal`: a file that gets one line for every item computed, so that tests can count."""
        self._journal = journal
        self._slowdown = slowdown

    def check(self, spec: SimulatedSpec) -> None:
        """It names nothing."""

    def stages(self, spec: SimulatedSpec) -> Sequence[Stage]:
        cost_s = max(spec.cost_s + spec.batch_cost_s / spec.batch_items, 1e-5)
        return [
            Stage(
                each.name,
                each.pool,
                each.grouped,
                streams=spec.streams and not each.grouped,
                batch_items=spec.batch_items,
                cost_s=cost_s,
                timeout_s=spec.timeout_s,
            )
            for each in spec.stages
        ]

    def key(self, spec: SimulatedSpec, stage: str, item: SimulatedItem) -> dict[str, Any] | None:
        if not spec.cacheable or any(each.grouped and each.name == stage for each in spec.stages):
            return None
        return {"x": item.x, "seed": spec.seed, "result_bytes": spec.result_bytes}

    def trials(self, spec: SimulatedSpec) -> int:
        return spec.trials

    def labels(self, spec: SimulatedSpec) -> Mapping[str, str]:
        return {"model": f"simulated-{spec.seed}"}

    def batch_key(self, spec: SimulatedSpec) -> str:
        return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()

    def run(self, context: Context, spec: SimulatedSpec, batch: Sequence[Work[SimulatedItem]]) -> Sequence[Result]:
        if not _sleep(spec.batch_cost_s * self._slowdown, context):
            return [STOPPED] * len(batch)
        if any(stage.grouped and stage.name == context.stage for stage in spec.stages):
            return _finish_groups(batch) if spec.trials == 1 else _finish_trials(batch, spec.trials)
        return [self._run_one(context, spec, work) for work in batch]

    def stream(self, context: Context, feed: Feed[SimulatedItem]) -> None:
        """Each item takes its own time, however many run beside it."""
        running: list[tuple[float, int, Work[SimulatedItem]]] = []
        room, order = 1, count()
        while not context.is_cancelled():
            now = time.monotonic()
            for work in feed.more(room - len(running)):
                room = work.spec.batch_items
                cost_s = work.spec.cost_s if work.item.cost_s is None else work.item.cost_s
                heapq.heappush(running, (now + cost_s * self._slowdown, next(order), work))
            if not running:
                return
            time.sleep(max(0.0, min(running[0][0] - now, LOOK_S / 10)))
            while running and running[0][0] <= time.monotonic():
                _, _, work = heapq.heappop(running)
                feed.done(work, self._run_one(context, work.spec, work, cost_s=0.0))

    def advance(self, spec: SimulatedSpec, stage: str, work: Work[SimulatedItem], result: Result) -> Result:  # noqa: ARG002  # other kinds look at it
        names = [each.name for each in spec.stages]
        return replace(result, next=(*names, "")[names.index(stage) + 1])

    def _run_one(
        self, context: Context, spec: SimulatedSpec, work: Work[SimulatedItem], cost_s: float | None = None
    ) -> Result:
        item = work.item
        cost_s = next(each for each in (cost_s, item.cost_s, spec.cost_s) if each is not None)
        chance = random.Random(f"{spec.seed}:{canonical(item.x)}:{work.index}")
        if item.hang:
            _hang(item.hang)
        if item.crash or chance.random() < spec.crash_rate:
            os.kill(os.getpid(), signal.SIGKILL)
        if not _sleep(cost_s * self._slowdown, context):
            return STOPPED
        if self._journal:
            with self._journal.open("a") as journal:
                journal.write(f"{canonical(item.x)}\n")
        if item.fail or chance.random() < spec.failure_rate:
            return Result(error=ItemError("simulated_failure", "This item was told to fail."))
        if work.attempts < item.fail_times:
            return Result(error=ItemError("simulated_outage", "This attempt was told to fail.", retryable=True))
        return Result(score=score(item), value={"x": item.x, "pad": "x" * spec.result_bytes})


def score(item: SimulatedItem) -> float:
    """A number in [0, 1) that depends on `x` alone."""
    return int.from_bytes(hashlib.sha256(canonical(item.x).encode()).digest()[:6]) / 2**48


def _sleep(seconds: float, context: Context) -> bool:
    """Sleep, but not past the end of the job; False when it ended."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_S))
        if context.is_cancelled():
            return False
    return True


def _hang(how: str) -> None:
    while how == "sleep":
        time.sleep(1)
    re.match(r"(a+)+$", "a" * 64 + "b")  # holds the interpreter for longer than anybody waits


def _finish_groups(batch: Sequence[Work[SimulatedItem]]) -> list[Result]:
    """Each item's score beside its group's mean; items that failed earlier stay failed and do not count."""
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
    """The mean of an item's trials that ran; an item none of whose trials ran has failed."""
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
