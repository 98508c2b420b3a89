"""The deployment under test, as scenarios use it: jobs with the lowest priority, and rollouts with a trainer.

The jobs of a case are cancelled when the case ends. They are also listed in Redis: if the measuring process is killed,
the next measurement cancels them, or the process that notices the end of the run.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from config import keys
from config.queues import Priority
from tasks.deployment_benchmarks.load_monitor import Observation, observe, wait_until_idle
from tasks.errors import NoLongerWanted, UnknownJob
from tasks.jobs.core import JobCore
from tasks.jobs.dispatch.dispatcher import with_policy_servers
from tasks.jobs.model import Job, JobRequest
from tasks.measurement.timed_job import MeasurementFailed, TimedJob, run_timed
from tasks.rollouts.model import RolloutSpec
from tasks.rollouts.rollouts import Rollouts
from tasks.worker_registry import Worker

#: Deadline of a job of a case, in seconds.
JOB_DEADLINE_S = 1200.0
#: TTL of the list of a case's jobs, in seconds. Its jobs have ended by then, including rollouts without a consumer.
JOB_LIST_TTL_S = 2 * 86400
#: Seconds to wait for the device slots of a case, as after a restart, and seconds between two polls.
DEVICES_S, DEVICES_POLL_S = 30.0, 0.1
#: Seconds between two checks for the cancellation of the run.
CANCEL_POLL_S = 1.0
PRIORITY: Priority = "bulk"


class Deployment:
    """Job core of the running system, for the measurement of a case; records the jobs that the case starts."""

    def __init__(self, core: JobCore, run: str, is_cancelled: Callable[[], bool]) -> None:
        self.core = core
        self.rollouts = Rollouts(core, core.app)
        self.is_cancelled = is_cancelled
        self._run = run
        self._own: set[str] = set()
        self.log: list[str] = []

    @property
    def salt(self) -> str:
        """Return a unique text for prompts, so that the cache holds no answer to them."""
        return f"{self._run[:8]}-{time.time_ns():x}"

    def add_log(self, line: str) -> None:
        """Append a line to the scenario's log."""
        self.log.append(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} {line}")

    def devices(self, slots: int, with_policies: bool = False) -> list[Worker]:
        """Return the workers on which dispatch may run a job with this number of slots.

        Wait up to `DEVICES_S` for missing slots, then raise MeasurementFailed: figures of fewer slots are not
        comparable.
        """
        until = time.monotonic() + DEVICES_S
        while True:
            registered = self.core.registry.workers()
            workers = [each for each in registered if each.pool == "device" and each.state != "stopping"]
            workers = with_policy_servers(workers) if with_policies else workers
            queues = [keys.queue_mode(worker.queues[0]) for worker in workers]
            modes = self.core.state.mget(queues) if queues else []
            found = [worker for worker, mode in zip(workers, modes, strict=True) if not mode][:slots]
            if len(found) == slots:
                return found
            if time.monotonic() > until:
                raise MeasurementFailed(f"The case needs {slots} usable device slots, and {len(found)} are registered.")
            self.require_not_cancelled()
            time.sleep(DEVICES_POLL_S)

    @contextmanager
    def observed(self, slots: int = 0, with_policies: bool = False) -> Iterator[Observation]:
        """Observe utilisation, memory and foreign jobs during the block, on the devices of a job with `slots` slots."""
        with observe(self.core, self.devices(slots, with_policies), self._own) as observation:
            yield observation

    def run_job(self, kind: str, items: list[dict[str, Any]], **options: Any) -> TimedJob:
        """Submit a job and wait for its end. Raises MeasurementFailed unless every item succeeded."""
        request = JobRequest(
            kind=kind,
            items=items,
            priority=PRIORITY,
            deadline_s=JOB_DEADLINE_S,
            metadata={"benchmark": self._run},
            **options,
        )
        return run_timed(self.core, lambda: self.core.submitter.submit(request), self._wait)

    def _wait(self, job_id: str) -> Job:
        self._record(job_id)
        while (ended := self.core.results.wait(job_id, CANCEL_POLL_S)).is_active:
            self.require_not_cancelled()
        return ended

    @contextmanager
    def rollout(self, spec: RolloutSpec, prompts: Sequence[bytes], slots: int | None) -> Iterator[str]:
        rollout = self.rollouts.create(spec, prompts, {"benchmark": self._run}, PRIORITY, slots=slots)
        self._record(rollout)
        try:
            yield rollout
        finally:
            self.core.cancel(rollout)

    def require_not_cancelled(self) -> None:
        if self.is_cancelled():
            raise NoLongerWanted("The run was cancelled before this case was measured.")

    def cancel_jobs(self) -> None:
        """Cancel the jobs of this run's cases, including those of a killed process, and wait until they are idle."""
        wait_until_idle(self.core, end_jobs(self.core, self._run))

    def _record(self, job_id: str) -> str:
        self._own.add(job_id)
        pipeline = self.core.state.pipeline()
        pipeline.sadd(keys.benchmark_jobs(self._run), job_id)
        pipeline.expire(keys.benchmark_jobs(self._run), JOB_LIST_TTL_S)
        pipeline.execute()
        return job_id


def end_jobs(core: JobCore, run: str) -> set[str]:
    """Cancel the jobs that the run's current case started. Returns their ids; some may still run for a moment."""
    left = {str(job) for job in core.state.smembers(keys.benchmark_jobs(run))}
    for job in left:
        with suppress(UnknownJob):
            core.cancel(job)
    core.state.delete(keys.benchmark_jobs(run))
    return left
