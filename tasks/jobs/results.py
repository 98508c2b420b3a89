"""What a client reads: outcomes in input order, with what it asked for in place of a failed item's score."""

import time
from collections.abc import Iterator
from typing import Any

from redis import Redis
from redis.exceptions import TimeoutError

from config import keys
from tasks.errors import UnknownJob
from tasks.jobs.model import Job
from tasks.jobs.store import Store

#: What an item without an outcome reads as once its job is over.
_UNFINISHED = {"cancelled": "cancelled", "failed": "cancelled", "done": "timed_out"}
_ENDS = ("done", "failed", "cancelled")
#: Milliseconds after which the job itself is looked at, should its events be trimmed or lost.
_BLOCK_MS = 1000


class Results:
    def __init__(self, state: Redis, store: Store) -> None:
        self._state = state
        self._store = store

    def read(self, job: Job, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """Rows in input order. While the job runs, items without an outcome are left out."""
        stop = job.total if stop is None else min(stop, job.total)
        for index, outcome in self._store.outcomes(job.id, start, stop):
            if outcome is None:
                if job.is_active:
                    continue
                outcome = self._unfinished(job)
            if "id" not in outcome:  # settled by recovery, which does not read payloads
                outcome = _names(self._payload(job, index)) | outcome
            yield _row(index, outcome, job.fill)

    def wait(self, job: str, timeout_s: float) -> Job:
        """The job, once it is over or the time is up. Sleeps on its events, so the end is seen at once."""
        deadline = time.monotonic() + timeout_s
        last, current = "0", self._store.job(job)
        while current.is_active and (left_s := deadline - time.monotonic()) > 0:
            try:
                events = self._state.xread({keys.job_events(job): last}, block=int(min(_BLOCK_MS, 1000 * left_s)) or 1)
            except TimeoutError:
                events = None
            entries = [entry for _, page in _streams(events) for entry in page]
            if entries:
                last = entries[-1][0]
            if not entries or any(fields["event"] in _ENDS for _, fields in entries):
                current = self._store.job(job)
        return current

    def events(self, job: str, after: str, block_ms: int) -> list[tuple[str, dict[str, str]]]:
        """Events after this id, waiting for the first one at most so long."""
        if not self._state.exists(keys.job(job)):
            raise UnknownJob(f"There is no job {job!r}; it may have expired.")
        found = self._state.xread({keys.job_events(job): after}, block=block_ms)
        return [(name, fields) for _, entries in _streams(found) for name, fields in entries]

    def _payload(self, job: Job, index: int) -> dict[str, Any]:
        return next(self._store.items(job.id, index, index + 1), {})

    def _unfinished(self, job: Job) -> dict[str, Any]:
        status = "timed_out" if job.reason == "deadline" else _UNFINISHED[job.state]
        message = (
            "The job's deadline passed first." if status == "timed_out" else "The job ended before this item was done."
        )
        return {
            "status": status,
            "error": {"type": status, "message": message, "retryable": True},
        }


def _names(payload: dict[str, Any]) -> dict[str, Any]:
    return {"id": payload.get("id"), "group_id": payload.get("group_id")}


def _streams(reply: Any) -> list[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """XREAD's reply is a list under RESP2 and a dict of lists of lists under RESP3."""
    if not reply:
        return []
    if isinstance(reply, dict):
        return [(name, [entry for page in pages for entry in page]) for name, pages in reply.items()]
    return [(name, entries) for name, entries in reply]


def _row(index: int, outcome: dict[str, Any], fill: float | None) -> dict[str, Any]:
    valid = outcome["status"] == "ok"
    return {
        "index": index,
        "id": outcome.get("id"),
        "group_id": outcome.get("group_id"),
        "status": outcome["status"],
        "score": outcome.get("score") if valid else fill,
        "valid": valid,
        "parts": outcome.get("parts"),
        "value": outcome.get("value"),
        "error": outcome.get("error"),
        "cached": outcome.get("cached", False),
        "attempts": outcome.get("attempts", 0),
        "latency_ms": outcome.get("latency_ms"),
        "worker": outcome.get("worker"),
    }
