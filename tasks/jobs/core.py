"""Job core of a process: its shared parts, and the operations on a whole job (cancel, pause, retry)."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from opentelemetry.trace import NoOpTracer, Tracer

from config.settings import Settings
from tasks.app import AssayCelery
from tasks.errors import Conflict, UnknownJob
from tasks.jobs.core_parts import CoreParts
from tasks.jobs.dispatch.recovery import Recovery
from tasks.jobs.execution.runner import Runner
from tasks.jobs.job_retry import JobRetry
from tasks.jobs.model import Job
from tasks.jobs.queries.cache_explanation import CacheExplainer
from tasks.jobs.queries.results import Results
from tasks.jobs.state.storage import file_path
from tasks.jobs.states import RUNNABLE
from tasks.jobs.submission.submitter import Submitter
from tasks.runtime import Runtime
from tasks.worker_registry import Worker


@dataclass(frozen=True, kw_only=True)
class JobCore(CoreParts):
    """Made by `tasks.composition.create_core`, once per process."""

    settings: Settings
    app: AssayCelery
    tracer: Tracer = field(default_factory=NoOpTracer)

    @cached_property
    def submitter(self) -> Submitter:
        return Submitter(self, self.settings.job_ttl_s, self.settings.idempotency_ttl_s, self.settings.stored_items)

    @cached_property
    def results(self) -> Results:
        return Results(self.state, self.store, self.outcomes, self.payloads)

    def runner(self, worker: Worker, runtime: Runtime) -> Runner:
        """Return the runner of a worker process's chunks."""
        return Runner(self, worker, runtime, self.tracer)

    def recovery(self) -> Recovery:
        """Return the recovery of dead workers' chunks."""
        return Recovery(self, self.settings.heartbeat_ttl_s, self.settings.rollout_idle_s)

    def kept_file(self, job: Job, name: str) -> bytes:
        """Return a file that a kind stored beside the job's outcomes. Raise StoredFileMissing."""
        return self.storage.read(file_path(job.layout.folder_of(job.id), name), within="")

    def explain(self, job_id: str, index: int) -> dict[str, Any]:
        """Return the reason why this item was a cache hit or a miss."""
        explainer = CacheExplainer(self.state, self.store, self.payloads, self.outcomes, self.cache, self.kinds)
        return explainer.explain(job_id, index)

    def cancel(self, job_id: str) -> str:
        """End the job; finished results stay readable. Returns its state."""
        return self._found(job_id, self.ledger.cancel(job_id))

    def pause(self, job_id: str) -> None:
        self._require_active(job_id, self.ledger.pause(job_id, True))

    def resume(self, job_id: str) -> None:
        self._require_active(job_id, self.ledger.pause(job_id, False))
        self.dispatcher.fill()

    def pause_queue(self, queue: str, draining: bool = False) -> None:
        """Stop dispatching to this queue. Running chunks are finished; waiting chunks return to the pending lists, for
        other queues."""
        self.ledger.unqueue(queue, "draining" if draining else "paused")
        self.dispatcher.fill()

    def resume_queue(self, queue: str) -> None:
        self.ledger.unqueue(queue, "")
        self.dispatcher.fill()

    def retry_failed(self, job_id: str) -> int:
        """Retry the items that failed or have no outcome, together with every other member of their groups. Returns the
        number of items."""
        return JobRetry(self).run(job_id)

    def purge(self, job_id: str) -> None:
        """Delete an ended job with its results, as if it had expired. Its files are deleted soon after."""
        if not self.ledger.remove(job_id):
            raise Conflict("The job runs again: it was retried meanwhile.")

    def repair(self, job_id: str) -> int:
        """Make every item of an active job pending again that is in no place, so that nothing would run it, and
        complete an interrupted retry. Returns the number of items; 0 for a sound job."""
        self._found(job_id, self.store.states([job_id])[0] or "")
        found = self.ledger.audit(job_id)
        number = sum(found.repaired.values()) + sum(JobRetry(self).run(job) for job in found.interrupted)
        self.dispatcher.fill()
        return number

    def _found(self, job_id: str, state: str) -> str:
        if not state:
            raise UnknownJob(f"There is no job {job_id!r}; it may have expired.")
        return state

    def _require_active(self, job_id: str, state: str) -> None:
        if self._found(job_id, state) not in RUNNABLE:
            raise Conflict(f"The job is {state}.")
