"""Retry of a job: runs its items again that failed or have no outcome. An interrupted retry is resumed by recovery."""

import json
from collections.abc import Sequence
from typing import Any

from tasks.errors import Conflict
from tasks.jobs.core_parts import CoreParts
from tasks.jobs.model import Job
from tasks.jobs.state.ledger import Reopened, compress
from tasks.jobs.state.outcome import is_ok
from tasks.jobs.states import REOPENING, RETRIABLE

#: Number of items reopened by one call of the script.
PAGE = 200


class JobRetry:
    def __init__(self, core: CoreParts) -> None:
        self._ledger = core.ledger
        self._store = core.store
        self._outcomes = core.outcomes
        self._kinds = core.kinds
        self._dispatcher = core.dispatcher

    def run(self, job_id: str) -> int:
        """Run the items again that failed or have no outcome, together with every other member of their groups. Returns
        the number of items. Idempotent: a retry that was interrupted continues."""
        current = self._store.job(job_id)
        if refusal := self._kinds[current.kind].retry_refusal:
            raise Conflict(refusal)
        if current.state not in RETRIABLE:
            raise Conflict(f"The job is {current.state}: only a job that has ended can be retried.")
        if current.trimmed:
            raise Conflict("A rollout whose first outcomes were deleted cannot be retried.")
        lines = self._outcomes.lines(current, 0, current.total * current.trials)
        failed = [index for index, line in lines if line is None or not is_ok(line)]
        again = self._store.with_their_groups(job_id, failed)
        if not again and current.state != REOPENING:
            return 0
        for start in range(0, len(again), PAGE):
            if self._ledger.reopen(job_id, self._as_counted(current, again[start : start + PAGE])) < 0:
                raise Conflict("The job's state changed during the retry: read the job again.")
        ranges = compress(again).split(",")
        self._ledger.run_reopened(job_id, [",".join(ranges[at : at + PAGE]) for at in range(0, len(ranges), PAGE)])
        self._dispatcher.fill()
        return len(again) // current.trials

    def _as_counted(self, job: Job, indices: Sequence[int]) -> list[Reopened]:
        """Return these items with the values that their last outcomes added to the counters."""
        wanted = set(indices)
        counted = []
        for index, line in self._outcomes.lines(job, indices[0], indices[-1] + 1):
            if index in wanted:
                row: dict[str, Any] = json.loads(line) if line else {"status": "", "error": None, "cached": False}
                error_type = row["error"]["type"] if row["error"] else ""
                counted.append(Reopened(index, row["status"], error_type, row["cached"]))
        return counted
