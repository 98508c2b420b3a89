"""Job core of a process: its shared parts, and the operations on a whole job (cancel, pause, retry)."""

import json
from collections.abc import Sequence
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
from tasks.jobs.model import Job
from tasks.jobs.queries.cache_explanation import CacheExplainer
from tasks.jobs.queries.results import Results
from tasks.jobs.state.ledger import Reopened, compress
from tasks.jobs.state.outcome import is_ok
from tasks.jobs.state.storage import file_path
from tasks.jobs.states import RETRIABLE, RUNNABLE
from tasks.jobs.submission.submitter import Submitter
from tasks.runtime import Runtime
from tasks.worker_registry import Worker

#: Number of items reopened by one call of the script.
PAGE = 200


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

    def recovery(self, holder: str) -> Recovery:
        """Return the recovery of dead workers' chunks; `holder` names this process in the lock of a round."""
        return Recovery(self, holder, self.settings.heartbeat_ttl_s, self.settings.rollout_idle_s)

    def kept_file(self, job: Job, name: str) -> bytes:
        """Return a file that a kind stored beside the job's outcomes. Raise StoredFileMissing."""
        return self.storage.read(file_path(job.layout.folder_of(job.id), name))

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
        current = self.store.job(job_id)
        if refusal := self.kinds[current.kind].retry_refusal:
            raise Conflict(refusal)
        if current.state not in RETRIABLE:
            raise Conflict(f"The job is {current.state}: only a job that is done, or failed, can be retried.")
        if current.trimmed:
            raise Conflict("A rollout whose first outcomes were deleted cannot be retried.")
        lines = self.outcomes.lines(current, 0, current.total * current.trials)
        failed = [index for index, line in lines if line is None or not is_ok(line)]
        again = self.store.with_their_groups(job_id, failed)
        if not again:
            return 0
        for start in range(0, len(again), PAGE):
            if self.ledger.reopen(job_id, self._as_counted(current, again[start : start + PAGE])) < 0:
                raise Conflict("The job's state changed during the retry: read the job again.")
        ranges = compress(again).split(",")
        self.ledger.run_reopened(job_id, [",".join(ranges[at : at + PAGE]) for at in range(0, len(ranges), PAGE)])
        self.dispatcher.fill()
        return len(again) // current.trials

    def _as_counted(self, job: Job, indices: Sequence[int]) -> list[Reopened]:
        """Return these items with the values that their last outcomes added to the counters."""
        wanted = set(indices)
        counted = []
        for index, line in self.outcomes.lines(job, indices[0], indices[-1] + 1):
            if index in wanted:
                row: dict[str, Any] = json.loads(line) if line else {"status": "", "error": None, "cached": False}
                error_type = row["error"]["type"] if row["error"] else ""
                counted.append(Reopened(index, row["status"], error_type, row["cached"]))
        return counted

    def _found(self, job_id: str, state: str) -> str:
        if not state:
            raise UnknownJob(f"There is no job {job_id!r}; it may have expired.")
        return state

    def _require_active(self, job_id: str, state: str) -> None:
        if self._found(job_id, state) not in RUNNABLE:
            raise Conflict(f"The job is {state}.")
