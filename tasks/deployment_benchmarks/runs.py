"""Benchmark runs as the web process and the scheduler use them: start at most a single run at a time, and read runs."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from uuid import uuid4

from redis.exceptions import LockError

from config import keys
from config.profiles import Profiles
from config.schedule import due_at
from tasks.deployment_benchmarks.catalogue import find, plan
from tasks.deployment_benchmarks.deployment import PRIORITY, end_jobs
from tasks.deployment_benchmarks.figure_history import FigureHistory
from tasks.deployment_benchmarks.kind import MEASURE, Benchmark
from tasks.deployment_benchmarks.model import BenchmarkSpec, RunOptions
from tasks.deployment_benchmarks.report import folder_path
from tasks.deployment_benchmarks.run_history import ENDED, Run, RunHistory, RunState
from tasks.deployment_benchmarks.scenarios.scenario import Capabilities
from tasks.errors import Conflict, InvalidRequest, StorageUnavailable, UnknownBenchmark, UnknownJob
from tasks.inference.models import Models
from tasks.jobs.core import JobCore
from tasks.jobs.dispatch.dispatcher import with_policy_servers
from tasks.jobs.model import JobRequest
from tasks.jobs.queries.listing import JobListing
from tasks.jobs.states import ACTIVE, CANCELLED
from tasks.measurement.machine import gpus_of
from tasks.worker_registry import Worker

log = logging.getLogger(__name__)

#: TTL of the lock that is held while a run is started, in seconds.
LOCK_S = 30
#: Number of latest runs that are searched for an active run.
SEARCHED = 20
#: Number of jobs of each state that are read to decide whether the system is busy.
SCANNED_JOBS = 200


class Runs:
    """Starts and reads benchmark runs; at most a single run is active at a time."""

    def __init__(self, core: JobCore, profiles: Profiles) -> None:
        self._core = core
        self._profiles = profiles
        self._models = Models(core.settings.models_dir, core.settings.model_paths)
        self.history = RunHistory(core.state)
        self.figures = FigureHistory(core.state)

    # --- starting ---

    def start(self, name: str, options: RunOptions) -> Run:
        """Start a run now.

        Raises UnknownBenchmark, InvalidRequest for an unknown profile or model, and Conflict while another run is
        active.
        """
        benchmark = find(name)
        self._check(options)
        run = Run(uuid4().hex, benchmark.name, "request", "queued", self.history.now())
        with self._lock():
            if active := self.active():
                raise Conflict(
                    f"The benchmark {active.name!r} is active (run {active.id}). Wait for its end: runs do not overlap."
                )
            self._delete_old()
            self.history.add(run)
            return self._submit(run, options)

    def schedule(self, name: str, slot: str, options: RunOptions) -> Run:
        """Start the run that is due at this time, or record why it is skipped. Idempotent by name and time."""
        benchmark = find(name)
        run = Run(_id_of(name, slot), benchmark.name, "schedule", "queued", self.history.now(), due_at(slot))
        with self._lock():
            known = self.history.get(run.id)
            if known and (known.job or known.state in ENDED):
                return known
            if note := self._reason_to_skip(run.id):
                return self.history.skip(known or run, f"Due at {slot}, skipped: {note}")
            self._delete_old()
            self.history.add(run)
            return self._submit(known or run, options)

    def _check(self, options: RunOptions) -> None:
        if options.model:
            self._models.local(options.model, "model")
        names = [profile.name for profile in self._profiles]
        if "profile" in options.model_fields_set and options.profile not in names:
            known = ", ".join(names) or "none"
            raise InvalidRequest(f"profile: unknown profile {options.profile!r}; choose from {known}.", field="profile")

    def _delete_old(self) -> None:
        for run in self.history.outdated():
            try:
                if run.folder:
                    self._core.storage.delete(folder_path(run.folder))
            except StorageUnavailable as error:  # the next run tries again
                log.warning("cannot delete the report of benchmark run %s; the next run tries again: %s", run.id, error)
                return
            self.history.delete(run)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock for starting runs. Raises Conflict if another process holds it for too long."""
        lock = self._core.state.lock(keys.benchmarks_lock(), timeout=LOCK_S, blocking_timeout=LOCK_S)
        if not lock.acquire():
            raise Conflict("Another benchmark is being started: try again.")
        try:
            yield
        finally:
            with suppress(LockError):  # the lock expired
                lock.release()

    def _submit(self, run: Run, options: RunOptions) -> Run:
        workers = self._core.registry.workers()
        devices = [worker for worker in workers if worker.pool == "device" and worker.state != "stopping"]
        made = plan(find(run.name), self._capabilities(devices), options)
        if not made.items:
            note = "No scenario can be measured here: " + "; ".join(made.left_out)
            return self.history.change(run, state="failed", note=note, ended_at=self.history.now())
        spec = BenchmarkSpec(
            run=run.id,
            name=run.name,
            trigger=run.trigger,
            options=options,
            left_out=made.left_out,
            slots=tuple(device.queues[0] for device in devices),
            gpus=gpus_of(devices),
        )
        request = JobRequest(
            kind=Benchmark.name,
            items=[item.model_dump(mode="json") for item in made.items],
            spec=spec.model_dump(mode="json"),
            priority=PRIORITY,
            cache="off",
            metadata={"name": run.name, "benchmark": run.id},
        )
        job = self._core.submitter.submit(request, f"benchmark:{run.id}")
        return self.history.change(run, job=job, total=len(made.items))

    def _capabilities(self, devices: Sequence[Worker]) -> Capabilities:
        served = [each for each in with_policy_servers(devices) if any(server.connected for server in each.policies)]
        return Capabilities(
            slots=len(devices),
            policy_servers=len(served),
            models=tuple(self._models.names()),
            profiles=tuple(profile.name for profile in self._profiles),
            policy_is_real=not self._core.settings.uses_development_policy,
        )

    def _reason_to_skip(self, run: str) -> str:
        active = self.active()
        if active and active.id != run:  # the same id: a process died while it started this run
            return f"the benchmark {active.name!r} was still running."
        if busy := self.count_user_jobs():
            return f"{busy} job{'s' if busy > 1 else ''} of users kept the system busy."
        return ""

    def count_user_jobs(self) -> int:
        """Count the active, unpaused jobs of users. Idle rollouts count too: their trainer computes and must not be
        disturbed."""
        listing = JobListing(self._core.state, self._core.store)
        active = [job for state in ACTIVE for job in listing.page(None, state, SCANNED_JOBS, None).jobs]
        return sum(job.kind != Benchmark.name and not job.paused for job in active)

    # --- reading ---

    def active(self) -> Run | None:
        newest = self.history.newest(SEARCHED, skipped=False)
        return next((run for run in map(self._settled, newest) if run.state not in ENDED), None)

    def get(self, run: str) -> Run:
        found = self.history.get(run)
        if found is None:
            raise UnknownBenchmark(f"Unknown benchmark run {run[:64]!r}.")
        return self._settled(found)

    def newest(self, number: int) -> list[Run]:
        return [self._settled(run) for run in self.history.newest(number)]

    def done(self, run: Run) -> int:
        """Return the number of finished measurements."""
        if run.state in ENDED or not run.job:
            return run.total if run.state == "done" else 0
        return int(self._core.state.bitcount(keys.job_passed(run.job, MEASURE, "0")))

    def _settled(self, run: Run) -> Run:
        """Return the run with its current state, which follows from its job's state.

        A run whose job ended or expired without a report ends likewise. A run that no worker starts is abandoned: it
        would block the runs after it."""
        if run.state in ENDED:
            return run
        if not run.job:  # the starting process died; after a while the run counts as failed
            late = self.history.now() - run.created_at > 2 * LOCK_S
            return self._end(run, "failed", "It was never started.") if late else run
        try:
            job = self._core.store.job(run.job)
        except UnknownJob:
            return self._end(run, "failed", "Its job expired and left no report.")
        if job.state in ACTIVE:
            if not job.started_at and run.is_late(self.history.now()):
                ended = self.history.give_up(run)
                self._core.cancel(run.job)
                return ended
            return replace(run, state="running" if job.started_at else "queued", started_at=job.started_at)
        if job.state == CANCELLED:
            return self._end(run, "cancelled", "Its job was cancelled.")
        # The report is written just before the job ends: read the record again, it may be older than both.
        known = self.history.get(run.id) or run
        return known if known.state in ENDED else self._end(run, "failed", "Its job ended without a report.")

    def _end(self, run: Run, state: RunState, note: str) -> Run:
        end_jobs(self._core, run.id)  # the measuring process may be dead
        return self.history.change(run, state=state, note=note, ended_at=self.history.now())


def _id_of(name: str, slot: str) -> str:
    """Return the same id in every process, so that two schedulers create a single run."""
    return hashlib.sha256(f"{name}\n{slot}".encode()).hexdigest()[:32]
