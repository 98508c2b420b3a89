"""The system as a scenario uses it: jobs of the lowest priority through the one door, and rollouts with a trainer.

Whatever a case starts is ended with it. A process that is killed leaves its jobs on a list, and whoever measures next,
or finds that the run is over, ends them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from config import keys
from config.queues import Priority
from tasks.benchmarks.observation import Observation, observe, settle
from tasks.errors import NoLongerWanted, Permanent, UnknownJob
from tasks.jobs.core import JobCore
from tasks.jobs.dispatch import with_policy_servers
from tasks.jobs.model import Job, JobRequest
from tasks.registry import Worker
from tasks.rollouts.model import RolloutSpec
from tasks.rollouts.rollouts import Rollouts

#: Seconds a job of a case may take.
MOST_S = 1200.0
#: Seconds for which the list of a case's jobs is kept: by then all have ended, rollouts too, as nobody asked for more.
LISTED_S = 2 * 86400
#: Seconds that devices may take to be there, as after a restart, and between two looks at them.
DEVICES_S, DEVICES_LOOK_S = 30.0, 0.1
#: Seconds between two looks at whether the run is still wanted.
LOOK_S = 1.0
PRIORITY: Priority = "bulk"


class MeasurementFailed(Permanent):
    """What was to be measured did not work."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that was waited for."""

    job: Job
    seconds: float
    """From before its submit to its end."""
    rows: Sequence[Mapping[str, Any]]


class Stand:
    def __init__(self, core: JobCore, run: str, is_cancelled: Callable[[], bool]) -> None:
        self.core = core
        self.rollouts = Rollouts(core, core.app)
        self.is_cancelled = is_cancelled
        self._run = run
        self._own: set[str] = set()
        self.log: list[str] = []

    @property
    def salt(self) -> str:
        """Part of every question, so that none was asked before."""
        return f"{self._run[:8]}-{time.time_ns():x}"

    def say(self, line: str) -> None:
        """A line of the scenario's log."""
        self.log.append(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} {line}")

    def devices(self, slots: int, with_policies: bool = False) -> list[Worker]:
        """Those that a job of so many slots may be on, as `fill` counts them. Raises MeasurementFailed when there are
        fewer, also a little later: what fewer can do is another figure."""
        until = time.monotonic() + DEVICES_S
        while True:
            there = self.core.registry.workers()
            workers = [each for each in there if each.pool == "device" and each.state != "stopping"]
            workers = with_policy_servers(workers) if with_policies else workers
            queues = [keys.queue_mode(worker.queues[0]) for worker in workers]
            held = self.core.state.mget(queues) if queues else []
            found = [worker for worker, mode in zip(workers, held, strict=True) if not mode][:slots]
            if len(found) == slots:
                return found
            if time.monotonic() > until:
                raise MeasurementFailed(f"It takes {slots} device slots, and {len(found)} of use are there.")
            self.require_wanted()
            time.sleep(DEVICES_LOOK_S)

    @contextmanager
    def observed(self, slots: int = 0, with_policies: bool = False) -> Iterator[Observation]:
        """What happens meanwhile, on the devices that a job of so many slots may have."""
        with observe(self.core, self.devices(slots, with_policies), self._own) as observation:
            yield observation

    def run(self, kind: str, items: list[dict[str, Any]], **options: Any) -> Ran:
        """Submit a job and wait for its end. Raises MeasurementFailed unless all of its items are good."""
        request = JobRequest(
            kind=kind, items=items, priority=PRIORITY, deadline_s=MOST_S, metadata={"benchmark": self._run}, **options
        )
        started = time.perf_counter()
        job = self._note(self.core.door.submit(request))
        while (ended := self.core.results.wait(job, LOOK_S)).is_active:
            self.require_wanted()
        seconds = time.perf_counter() - started
        if ended.state != "done" or ended.ok < ended.total:
            told = ", ".join(f"{number} {reason}" for reason, number in ended.reasons.items()) or ended.reason
            raise MeasurementFailed(f"The {kind} job ended as {ended.state}, {ended.ok} of {ended.total} good: {told}.")
        return Ran(ended, seconds, list(self.core.results.read(ended)))

    @contextmanager
    def rollout(self, spec: RolloutSpec, prompts: Sequence[bytes], slots: int | None) -> Iterator[str]:
        rollout = self.rollouts.create(spec, prompts, {"benchmark": self._run}, PRIORITY, slots=slots)
        self._note(rollout)
        try:
            yield rollout
        finally:
            self.core.cancel(rollout)

    def require_wanted(self) -> None:
        if self.is_cancelled():
            raise NoLongerWanted("The run was over before this case was measured.")

    def clear(self) -> None:
        """End what a case of this run has left, whoever began it."""
        settle(self.core, end_jobs(self.core, self._run))

    def _note(self, job: str) -> str:
        self._own.add(job)
        pipeline = self.core.state.pipeline()
        pipeline.sadd(keys.benchmark_jobs(self._run), job)
        pipeline.expire(keys.benchmark_jobs(self._run), LISTED_S)
        pipeline.execute()
        return job


def end_jobs(core: JobCore, run: str) -> set[str]:
    """Cancel what the case that a run was at has begun. Returns those jobs; some may run for a moment more."""
    left = {str(job) for job in core.state.smembers(keys.benchmark_jobs(run))}
    for job in left:
        with suppress(UnknownJob):
            core.cancel(job)
    core.state.delete(keys.benchmark_jobs(run))
    return left
