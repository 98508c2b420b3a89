"""Runs as others ask for them: started, one at a time, and looked at."""

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
from tasks.benchmarks.catalogue import find, plan
from tasks.benchmarks.figures import Figures
from tasks.benchmarks.history import ENDED, History, Run, RunState
from tasks.benchmarks.kind import MEASURE, Benchmark
from tasks.benchmarks.machine import gpus_of
from tasks.benchmarks.model import BenchmarkSpec, RunOptions
from tasks.benchmarks.report import folder_path
from tasks.benchmarks.scenario import Place
from tasks.benchmarks.stand import PRIORITY, end_jobs
from tasks.errors import Conflict, InvalidRequest, StorageUnavailable, UnknownBenchmark, UnknownJob
from tasks.inference.models import Models
from tasks.jobs.core import JobCore
from tasks.jobs.dispatch import with_policy_servers
from tasks.jobs.listing import Jobs
from tasks.jobs.model import ACTIVE, JobRequest
from tasks.registry import Worker

log = logging.getLogger(__name__)

#: Seconds for which nobody else may start a run while one is started.
DOOR_S = 30
#: Runs among which one that is under way is looked for.
LOOKED_AT = 20
#: Jobs of a state that are looked at, to tell whether the system is busy.
MOST_JOBS = 200


class Runs:
    def __init__(self, core: JobCore, profiles: Profiles) -> None:
        self._core = core
        self._profiles = profiles
        self._models = Models(core.settings.models_dir, core.settings.model_paths)
        self.history = History(core.state)
        self.figures = Figures(core.state)

    # --- starting ---

    def start(self, name: str, options: RunOptions) -> Run:
        """Run it now. Raises UnknownBenchmark, InvalidRequest for options that name what is not there, and Conflict
        while another runs."""
        benchmark = find(name)
        self._check(options)
        run = Run(uuid4().hex, benchmark.name, "request", "queued", self.history.now())
        with self._alone():
            if active := self.active():
                raise Conflict(f"The benchmark {active.name!r} runs (run {active.id}): one is measured at a time.")
            self._forget_old()
            self.history.add(run)
            return self._submit(run, options)

    def schedule(self, name: str, slot: str, options: RunOptions) -> Run:
        """Run what is due at this time, once however often it is said; or note why not."""
        benchmark = find(name)
        run = Run(_id_of(name, slot), benchmark.name, "schedule", "queued", self.history.now(), due_at(slot))
        with self._alone():
            known = self.history.get(run.id)
            if known and (known.job or known.state in ENDED):
                return known
            if note := self._reason_to_skip(run.id):
                return self.history.skip(known or run, f"Due at {slot}, and skipped: {note}")
            self._forget_old()
            self.history.add(run)
            return self._submit(known or run, options)

    def _check(self, options: RunOptions) -> None:
        if options.model:
            self._models.local(options.model, "model")
        names = [profile.name for profile in self._profiles]
        if "profile" in options.model_fields_set and options.profile not in names:
            known = ", ".join(names) or "none"
            raise InvalidRequest(f"profile: there is no {options.profile!r}; there are {known}.", field="profile")

    def _forget_old(self) -> None:
        for run in self.history.outdated():
            try:
                if run.folder:
                    self._core.storage.delete(folder_path(run.folder))
            except StorageUnavailable as error:  # another run will come
                log.warning("the report of benchmark run %s cannot be removed now: %s", run.id, error)
                return
            self.history.forget(run)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else starts a run meanwhile. Raises Conflict when somebody takes long to."""
        lock = self._core.state.lock(keys.benchmarks_door(), timeout=DOOR_S, blocking_timeout=DOOR_S)
        if not lock.acquire():
            raise Conflict("Another benchmark is just being started: try again.")
        try:
            yield
        finally:
            with suppress(LockError):  # it lapsed
                lock.release()

    def _submit(self, run: Run, options: RunOptions) -> Run:
        workers = self._core.registry.workers()
        devices = [worker for worker in workers if worker.pool == "device" and worker.state != "stopping"]
        made = plan(find(run.name), self._place(devices), options)
        if not made.items:
            note = "Nothing of it can be measured here: " + "; ".join(made.left_out)
            return self.history.change(run, state="failed", note=note, ended_at=self.history.now())
        spec = BenchmarkSpec(
            run=run.id, name=run.name, trigger=run.trigger, options=options, left_out=made.left_out,
            slots=tuple(device.queues[0] for device in devices), gpus=gpus_of(devices),
        )  # fmt: skip
        request = JobRequest(
            kind=Benchmark.name, items=[item.model_dump(mode="json") for item in made.items],
            spec=spec.model_dump(mode="json"), priority=PRIORITY, cache="off",
            metadata={"name": run.name, "benchmark": run.id},
        )  # fmt: skip
        job = self._core.door.submit(request, f"benchmark:{run.id}")
        return self.history.change(run, job=job, total=len(made.items))

    def _place(self, devices: Sequence[Worker]) -> Place:
        served = [each for each in with_policy_servers(devices) if any(server.connected for server in each.policies)]
        return Place(
            slots=len(devices),
            policy_servers=len(served),
            models=tuple(self._models.names()),
            profiles=tuple(profile.name for profile in self._profiles),
            policy_is_real=not self._core.settings.uses_development_policy,
        )

    def _reason_to_skip(self, run: str) -> str:
        active = self.active()
        if active and active.id != run:  # or whoever began to start this very run was cut off
            return f"the benchmark {active.name!r} was still running."
        if busy := self.users_jobs():
            return f"{busy} job{'s' if busy > 1 else ''} of users kept the system busy."
        return ""

    def users_jobs(self) -> int:
        """Jobs of users that are not over, as far as they are looked at: a rollout whose trainer trains just now has
        nothing to do for the moment, and is not to be disturbed either."""
        listing = Jobs(self._core.state, self._core.store)
        active = [job for state in ACTIVE for job in listing.page(None, state, MOST_JOBS, None).jobs]
        return sum(job.kind != Benchmark.name and not job.paused for job in active)

    # --- looking ---

    def active(self) -> Run | None:
        newest = self.history.newest(LOOKED_AT, skipped=False)
        return next((run for run in map(self._settled, newest) if run.state not in ENDED), None)

    def get(self, run: str) -> Run:
        found = self.history.get(run)
        if found is None:
            raise UnknownBenchmark(f"There is no benchmark run {run[:64]!r}.")
        return self._settled(found)

    def newest(self, number: int) -> list[Run]:
        return [self._settled(run) for run in self.history.newest(number)]

    def done(self, run: Run) -> int:
        """Cases that are measured."""
        if run.state in ENDED or not run.job:
            return run.total if run.state == "done" else 0
        return int(self._core.state.bitcount(keys.job_passed(run.job, MEASURE, "0")))

    def _settled(self, run: Run) -> Run:
        """A run whose job is over, or gone, without a report has ended as that did; one that nobody begins ends, too:
        until then no other is started."""
        if run.state in ENDED:
            return run
        if not run.job:  # whoever started it was cut off; a little later it counts as failed
            late = self.history.now() - run.created_at > 2 * DOOR_S
            return self._end(run, "failed", "It was never started.") if late else run
        try:
            job = self._core.store.job(run.job)
        except UnknownJob:
            return self._end(run, "failed", "Its job is gone, and it left no report.")
        if job.state in ACTIVE:
            if not job.started_at and run.is_late(self.history.now()):
                ended = self.history.give_up(run)
                self._core.cancel(run.job)
                return ended
            return replace(run, state="running" if job.started_at else "queued", started_at=job.started_at)
        if job.state == "cancelled":
            return self._end(run, "cancelled", "Its job was cancelled.")
        # The report is written just before the job ends; what was read here may be older than both.
        known = self.history.get(run.id) or run
        return known if known.state in ENDED else self._end(run, "failed", "Its job ended without a report.")

    def _end(self, run: Run, state: RunState, note: str) -> Run:
        end_jobs(self._core, run.id)  # whoever measured it may be dead
        return self.history.change(run, state=state, note=note, ended_at=self.history.now())


def _id_of(name: str, slot: str) -> str:
    """The same whoever asks: two schedulers make one run."""
    return hashlib.sha256(f"{name}\n{slot}".encode()).hexdigest()[:32]
