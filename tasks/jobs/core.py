"""The parts of the job core, put together once per process."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from config.profiles import Profiles, load_profiles
from config.settings import Settings
from tasks.app import AssayCelery
from tasks.benchmarks.history import History
from tasks.benchmarks.kind import Benchmark
from tasks.connections import connect
from tasks.episodes.served import ServedPolicy
from tasks.errors import Conflict, UnknownJob
from tasks.inference.kind import Inference
from tasks.inference.models import Models
from tasks.jobs.cache import Cache
from tasks.jobs.dispatch import Dispatcher
from tasks.jobs.explain import Explainer
from tasks.jobs.kinds import Kinds
from tasks.jobs.ledger import Ledger, Reopened, compress
from tasks.jobs.model import Job
from tasks.jobs.outcome import is_ok
from tasks.jobs.outcomes import Outcomes
from tasks.jobs.payloads import Payloads
from tasks.jobs.recovery import Recovery
from tasks.jobs.results import Results
from tasks.jobs.run import Runner
from tasks.jobs.storage import Storage, file_path, folder_name
from tasks.jobs.store import Store
from tasks.jobs.submit import Door
from tasks.jobs.values import Values
from tasks.judging.key import resolver
from tasks.judging.kind import Judge
from tasks.judging.rubrics import Rubrics
from tasks.registry import Registry, Worker
from tasks.rollouts.kind import Rollout
from tasks.rollouts.versions import Versions
from tasks.runtime import Means
from tasks.scoring.kind import Score
from tasks.scoring.lengths import Tokenizers
from tasks.simulated.kind import Simulated
from tasks.tracing import NO_TRACER, Tracer

#: Failed items reopened in one script.
PAGE = 200


@dataclass(frozen=True, slots=True)
class JobCore:
    settings: Settings
    app: AssayCelery
    state: Redis
    ledger: Ledger
    storage: Storage
    payloads: Payloads
    store: Store
    outcomes: Outcomes
    cache: Cache
    kinds: Kinds
    registry: Registry
    dispatcher: Dispatcher
    door: Door
    results: Results
    tracer: Tracer

    def runner(self, worker: Worker, means: Means) -> Runner:
        """What a worker process runs its chunks with, by means of what it holds."""
        return Runner(
            self.ledger, self.store, self.payloads, self.outcomes, self.values(), self.cache, self.kinds,
            self.dispatcher, means, worker.name, f"{worker.name}/{worker.incarnation}", worker.queues[0], worker.pool,
            self.tracer,
        )  # fmt: skip

    def values(self) -> Values:
        return Values(self.storage, lambda: {worker.host for worker in self.registry.workers()})

    def recovery(self, who: str) -> Recovery:
        return Recovery(
            self.state, self.ledger, self.storage, self.registry, self.dispatcher, self.settings.heartbeat_ttl_s,
            self.settings.rollout_idle_s, who,
        )  # fmt: skip

    def kept_file(self, job: Job, name: str) -> bytes:
        """What a kind kept beside the job's outcomes. Raises StoredFileMissing."""
        return self.storage.read(file_path(folder_name(job.id, job.layout), name))

    def explain(self, job: str, index: int) -> dict[str, Any]:
        """Why this item was a hit or a miss."""
        explainer = Explainer(self.state, self.store, self.payloads, self.outcomes, self.cache, self.kinds)
        return explainer.explain(job, index)

    def cancel(self, job: str) -> str:
        """End the job; finished results stay readable. Returns its state."""
        return self._found(job, self.ledger.cancel(job))

    def pause(self, job: str) -> None:
        self._require_active(job, self.ledger.pause(job, True))

    def resume(self, job: str) -> None:
        self._require_active(job, self.ledger.pause(job, False))
        self.dispatcher.fill()

    def pause_queue(self, queue: str, draining: bool = False) -> None:
        """Give this queue no more work. What runs is finished; what waits goes to others."""
        self.ledger.unqueue(queue, "draining" if draining else "paused")
        self.dispatcher.fill()

    def resume_queue(self, queue: str) -> None:
        self.ledger.unqueue(queue, "")
        self.dispatcher.fill()

    def retry_failed(self, job: str) -> int:
        """Run again what failed or was never come to, and what its groups make of it. Returns the number of items."""
        current = self.store.job(job)
        if current.kind == Benchmark.name:  # its run is over, and others are measured one at a time
            raise Conflict("A benchmark's job is not retried. Run the benchmark again instead.")
        if current.state not in ("done", "failed", "reopening"):
            raise Conflict(f"The job is {current.state}: only a job that is done, or failed, can be retried.")
        if current.trimmed:
            raise Conflict("The job was open-ended and has forgotten its first items: it cannot be retried.")
        lines = self.outcomes.lines(current, 0, current.total * current.trials)
        failed = [index for index, line in lines if line is None or not is_ok(line)]
        again = self.store.with_their_groups(job, failed)
        if not again:
            return 0
        for start in range(0, len(again), PAGE):
            if self.ledger.reopen(job, self._as_counted(current, again[start : start + PAGE])) < 0:
                raise Conflict("The job's state changed meanwhile: look at it again.")
        ranges = compress(again).split(",")
        self.ledger.run_reopened(job, [",".join(ranges[at : at + PAGE]) for at in range(0, len(ranges), PAGE)])
        self.dispatcher.fill()
        return len(again) // current.trials

    def _as_counted(self, job: Job, indices: Sequence[int]) -> list[Reopened]:
        """These items with what their last outcome added to the counters."""
        wanted = set(indices)
        counted = []
        for index, line in self.outcomes.lines(job, indices[0], indices[-1] + 1):
            if index in wanted:
                row: dict[str, Any] = json.loads(line) if line else {"status": "", "error": None, "cached": False}
                error_type = row["error"]["type"] if row["error"] else ""
                counted.append(Reopened(index, row["status"], error_type, row["cached"]))
        return counted

    def _found(self, job: str, state: str) -> str:
        if not state:
            raise UnknownJob(f"There is no job {job!r}; it may have expired.")
        return state

    def _require_active(self, job: str, state: str) -> None:
        if self._found(job, state) not in ("queued", "running", "finishing"):
            raise Conflict(f"The job is {state}.")


def create_core(
    settings: Settings, app: AssayCelery, profiles: Profiles | None = None, tracer: Tracer = NO_TRACER
) -> JobCore:
    """Connects to nothing yet. Raises SettingsError when the profiles' file is wrong."""
    state = connect(settings.redis_url)
    ledger, store = Ledger(state), Store(state)
    storage = Storage(settings.storage_url, settings.storage_shared)
    payloads = Payloads(state, storage)
    outcomes = Outcomes(state, storage, payloads)
    cache = Cache(connect(settings.cache_url), settings.cache_ttl_s)
    resolve = resolver(profiles or load_profiles(settings))
    judge = Judge(Rubrics(settings.rubrics_dir), resolve)
    models = Models(settings.models_dir, settings.model_paths)
    registry = Registry(state, settings.heartbeat_ttl_s)
    served, tokenizers = ServedPolicy(registry), Tokenizers(settings.tokenizers_dir)
    score = Score(judge, tokenizers, models, served, settings.episode_s)
    kinds = Kinds(
        Simulated(settings.simulated_journal, settings.simulated_slowdown),
        score,
        Rollout(score, models, Versions(state)),
        judge,
        Inference(models, resolve),
        Benchmark(History(state)),
    )
    dispatcher = Dispatcher(app, ledger, registry)
    door = Door(
        state, payloads, storage, ledger, cache, kinds, registry, dispatcher,
        settings.job_ttl_s, settings.idempotency_ttl_s, settings.stored_items,
    )  # fmt: skip
    results = Results(state, store, outcomes, payloads)
    return JobCore(
        settings, app, state, ledger, storage, payloads, store, outcomes, cache, kinds, registry, dispatcher, door,
        results, tracer,
    )  # fmt: skip
