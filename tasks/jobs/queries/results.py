"""Results of a job as clients read them: outcomes in input order, events, and waiting for the end of the job."""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from redis import Redis
from redis.exceptions import TimeoutError

from config import keys
from tasks import quick_json
from tasks.errors import UnknownJob
from tasks.jobs.model import Job
from tasks.jobs.state.job_store import JobStore
from tasks.jobs.state.outcome import unfinished
from tasks.jobs.state.outcome_store import PAGE, OutcomeStore
from tasks.jobs.state.payloads import Payloads
from tasks.jobs.state.trials import folded
from tasks.jobs.states import CANCELLED, DONE, ENDED, FAILED

#: Status of an item without an outcome once its job has ended, by the state of the job.
_UNFINISHED = {CANCELLED: "cancelled", FAILED: "cancelled", DONE: "timed_out"}
#: Milliseconds after which the job's state is polled, in case that its events were trimmed or lost.
_BLOCK_MS = 1000


class Results:
    def __init__(self, state: Redis, store: JobStore, outcomes: OutcomeStore, payloads: Payloads) -> None:
        self._state = state
        self._store = store
        self._outcomes = outcomes
        self._payloads = payloads

    def read(self, job: Job, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield rows in input order. While the job runs, items without an outcome are left out."""
        return (quick_json.read(line) for line in self.texts(job, start, stop))

    def lines(self, job: Job, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the rows as lines of JSON. Files of stored jobs are streamed without parsing. Every yielded piece
        consists of complete lines."""
        last = job.total if stop is None else min(stop, job.total)
        at = max(start, job.trimmed)
        while at < last:
            pieces, at_next = self._outcomes.whole_part(job, at, last)
            if pieces is not None:
                yield from pieces
            else:
                page = list(self.texts(job, at, at_next))
                if page:
                    yield ("\n".join(page) + "\n").encode()
            at = at_next

    def texts(self, job: Job, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yield the rows as JSON, row by row."""
        last = job.total if stop is None else min(stop, job.total)
        lines = self._outcomes.lines(job, max(start, job.trimmed) * job.trials, last * job.trials)
        while page := list(islice(lines, PAGE)):
            if not job.is_active:
                page = self._with_unfinished(job, page)
            rows = page if job.trials == 1 else folded(page, job.trials)
            yield from (line for _, line in rows if line is not None)

    def wait(self, job_id: str, timeout_s: float) -> Job:
        """Wait until the job has ended, or until the timeout, and return it. Blocks on the job's events, so that the
        end is noticed at once."""
        deadline = time.monotonic() + timeout_s
        last, current = "0", self._store.job(job_id)
        while current.is_active and (left_s := deadline - time.monotonic()) > 0:
            try:
                events = self._state.xread(
                    {keys.job_events(job_id): last}, block=int(min(_BLOCK_MS, 1000 * left_s)) or 1
                )
            except TimeoutError:
                events = None
            entries = [entry for _, page in streams(events) for entry in page]
            if entries:
                last = entries[-1][0]
            if not entries or any(fields["event"] in ENDED for _, fields in entries):
                current = self._store.job(job_id)
        return current

    def events(self, job_id: str, after: str, block_ms: int) -> list[tuple[str, dict[str, str]]]:
        """Return the events after this id. Blocks at most `block_ms` milliseconds for the first event."""
        if not self._state.exists(keys.job(job_id)):
            raise UnknownJob(f"There is no job {job_id!r}; it may have expired.")
        found = self._state.xread({keys.job_events(job_id): after}, block=block_ms)
        return [(name, fields) for _, entries in streams(found) for name, fields in entries]

    def _with_unfinished(self, job: Job, page: list[tuple[int, str | None]]) -> list[tuple[int, str | None]]:
        """Return the page with an outcome for every item of an ended job, whose missing outcomes cannot arrive any
        more."""
        missing = [index for index, line in page if line is None]
        if not missing:
            return page
        if not self._state.exists(keys.job(job.id)):  # the job expired while it was read
            raise UnknownJob(f"There is no job {job.id!r}; it may have expired.")
        status = "timed_out" if job.reason == "deadline" else _UNFINISHED[job.state]
        message = (
            "The job's deadline passed before this item was done."
            if status == "timed_out"
            else "The job ended before this item was done."
        )
        payloads = self._payloads.read(job.id, job.layout, missing)
        return [
            (index, unfinished(index, payloads.get(index, {}), status, message, job.fill) if line is None else line)
            for index, line in page
        ]


def streams(reply: Any) -> list[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """Normalize the reply of XREAD, which is a list under RESP2 and a dict of lists of lists under RESP3."""
    if not reply:
        return []
    if isinstance(reply, dict):
        return [(name, [entry for page in pages for entry in page]) for name, pages in reply.items()]
    return [(name, entries) for name, entries in reply]
