"""The parts of the job core, put together once per process."""

from dataclasses import dataclass

from redis import Redis

from config.settings import Settings
from tasks.app import AssayCelery
from tasks.connections import connect
from tasks.errors import Conflict, UnknownJob
from tasks.jobs.cache import Cache
from tasks.jobs.dispatch import Dispatcher
from tasks.jobs.kinds import Kinds
from tasks.jobs.ledger import Ledger, compress
from tasks.jobs.recovery import Recovery
from tasks.jobs.results import Results
from tasks.jobs.run import Runner
from tasks.jobs.store import Store
from tasks.jobs.submit import Door
from tasks.registry import Registry, Worker
from tasks.scoring.kind import Score
from tasks.simulated.kind import Simulated

#: Failed items reopened in one script.
PAGE = 200


@dataclass(frozen=True, slots=True)
class JobCore:
    settings: Settings
    state: Redis
    ledger: Ledger
    store: Store
    cache: Cache
    kinds: Kinds
    registry: Registry
    dispatcher: Dispatcher
    door: Door
    results: Results

    def runner(self, worker: Worker) -> Runner:
        """What a worker process runs its chunks with."""
        return Runner(
            self.ledger, self.store, self.cache, self.kinds, self.dispatcher,
            worker.name, f"{worker.name}/{worker.incarnation}", worker.queues[0], worker.pool,
        )  # fmt: skip

    def recovery(self, who: str) -> Recovery:
        return Recovery(self.state, self.ledger, self.registry, self.dispatcher, self.settings.heartbeat_ttl_s, who)

    def cancel(self, job: str) -> str:
        """End the job; finished results stay readable. Returns its state."""
        return self._found(job, self.ledger.cancel(job))

    def pause(self, job: str) -> None:
        self._require_active(job, self.ledger.pause(job, True))

    def resume(self, job: str) -> None:
        self._require_active(job, self.ledger.pause(job, False))
        self.dispatcher.fill("device", "api", "cpu")

    def pause_queue(self, queue: str, draining: bool = False) -> None:
        """Give this queue no more work. What runs is finished; what waits goes to others."""
        self.ledger.unqueue(queue, "draining" if draining else "paused")
        self.dispatcher.fill("device", "api", "cpu")

    def resume_queue(self, queue: str) -> None:
        self.ledger.unqueue(queue, "")
        self.dispatcher.fill("device", "api", "cpu")

    def retry_failed(self, job: str) -> int:
        """Run again what failed or was never come to, and what its groups make of it. Returns the number of items."""
        current = self.store.job(job)
        if current.state not in ("done", "failed", "reopening"):
            raise Conflict(f"The job is {current.state}: only a job that is done, or failed, can be retried.")
        failed = [
            index
            for index, outcome in self.store.outcomes(job, 0, current.total)
            if outcome is None or outcome["status"] != "ok"
        ]
        failed = self.store.with_their_groups(job, failed)
        if not failed:
            return 0
        for start in range(0, len(failed), PAGE):
            if self.ledger.reopen(job, failed[start : start + PAGE]) < 0:
                raise Conflict("The job's state changed meanwhile: look at it again.")
        ranges = compress(failed).split(",")
        self.ledger.run_reopened(job, [",".join(ranges[at : at + PAGE]) for at in range(0, len(ranges), PAGE)])
        self.dispatcher.fill("device", "api", "cpu")
        return len(failed)

    def _found(self, job: str, state: str) -> str:
        if not state:
            raise UnknownJob(f"There is no job {job!r}; it may have expired.")
        return state

    def _require_active(self, job: str, state: str) -> None:
        if self._found(job, state) not in ("queued", "running"):
            raise Conflict(f"The job is {state}.")


def create_core(settings: Settings, app: AssayCelery) -> JobCore:
    """Connects to nothing yet."""
    state = connect(settings.redis_url)
    ledger, store = Ledger(state), Store(state)
    cache = Cache(connect(settings.cache_url), settings.cache_ttl_s)
    kinds = Kinds(Simulated(settings.simulated_journal), Score())
    registry = Registry(state, settings.heartbeat_ttl_s)
    dispatcher = Dispatcher(app, ledger, registry)
    door = Door(state, store, ledger, cache, kinds, dispatcher, settings.job_ttl_s, settings.idempotency_ttl_s)
    return JobCore(settings, state, ledger, store, cache, kinds, registry, dispatcher, door, Results(state, store))
