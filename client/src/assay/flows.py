"""Protocol logic of the client: retries, streams and waits, shared by the blocking and the asyncio client.

Each function is a flow (see `steps.py`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from threading import Semaphore
from typing import TypeVar

from assay import calls
from assay.calls import Call
from assay.errors import UnexpectedReply, WaitTimeout
from assay.lines import EventReader, LineReader
from assay.model import ENDED, JobView, Row
from assay.retry import Backoff, Failure, Retry
from assay.steps import ConnectionLost, Emit, Exchange, Flow, Open, Pause, Read, Reply

log = logging.getLogger("assay")
T = TypeVar("T")

#: Remaining seconds of a wait below which it polls: a silent event stream would block beyond the deadline.
_POLL_BELOW_S = 16.0
#: First and longest interval between two polls of a job, in seconds.
_POLL_S = (0.05, 1.0)
#: Seconds between two requests for further rows of an output: after a request with rows, and at most without rows.
_FOLLOW_S = (0.2, 2.0)
#: Jobs per page of a list.
_PAGE = 50


def exchange(call: Call[T], retry: Retry) -> Flow[T]:
    """Send a call, retry it until the server responds, and return the parsed response."""
    backoff = Backoff(retry)
    while True:
        reply = yield Exchange(call)
        if isinstance(reply, Reply) and (200 <= reply.status < 300 or reply.status in call.accepted):
            return _parsed(call, reply)
        yield _pause(backoff, reply, call)


def _parsed(call: Call[T], reply: Reply) -> T:
    try:
        return call.parse(reply)
    except (KeyError, TypeError, AttributeError) as error:
        message = f"{call.method} {call.path} returned an unexpected response: {reply.content[:200]!r}."
        raise UnexpectedReply(message) from error


def _pause(backoff: Backoff, failure: Failure, call: Call[T]) -> Pause:
    delay = backoff.delay_after(failure, call.repeatable)
    cause = failure.cause if isinstance(failure, ConnectionLost) else f"HTTP {failure.status}"
    log.info("%s %s: %s; retrying in %.1f s", call.method, call.path, str(cause) or type(cause).__name__, delay)
    return Pause(delay)


def rows(job_id: str, start: int, limit: int | None, stop: int | None, retry: Retry) -> Flow[None]:
    """Emit rows in input order, each exactly once. After a lost connection, resume behind the last emitted row.

    `stop` is the index up to which rows are known to exist: a stream that ends earlier was cut without an error.
    """
    backoff, position, left = Backoff(retry), start, limit
    while left != 0 and (stop is None or position < stop):
        call = calls.rows(job_id, position, left)
        failure: Failure | None = yield Open(call)
        if isinstance(failure, Reply) and failure.status == 200:
            reader, failure = LineReader(), None
            while True:
                data = yield Read()
                for row in _rows(reader, data):
                    if row.index < position or left == 0:
                        continue
                    position, left = row.index + 1, None if left is None else left - 1
                    backoff.reset()
                    yield Emit(row)
                if not isinstance(data, bytes):
                    failure = data
                    break
            if failure is None and (stop is None or position >= stop or left == 0):
                return
        lost = failure or ConnectionLost(UnexpectedReply(f"the stream ended early, at row {position} of {stop}"))
        yield _pause(backoff, lost, call)


def _rows(reader: LineReader, data: bytes | ConnectionLost | None) -> Iterator[Row]:
    """Parse the complete lines received so far. After a lost connection the rest is half a line, so it is dropped;
    after a regular end of the stream the rest is a complete line."""
    lines = reader.feed(data) if isinstance(data, bytes) else iter((reader.rest,) if data is None else ())
    for line in lines:
        if line.strip():
            try:
                yield Row.from_json(json.loads(line))
            except ValueError as error:
                raise UnexpectedReply(f"Expected a row, got {line[:200]!r}.") from error


def output(job_id: str, start: int, wait: bool, timeout_s: float | None, retry: Retry) -> Flow[None]:
    """Emit the job's view, then the output lines that exist by now; repeat until the job has ended.

    Each line is emitted exactly once and complete, also after lost connections. Without `wait`, return after a single
    request.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    position, poll_s = start, _FOLLOW_S[0]
    while True:
        view: JobView = yield from exchange(calls.job(job_id), retry)
        yield Emit(view)
        before = position
        position = yield from _output_lines(job_id, position, view.total if view.ended else None, retry)
        if view.ended or not wait:
            return
        left_s = float("inf") if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise WaitTimeout(view, timeout_s or 0.0)
        poll_s = _FOLLOW_S[0] if position > before else min(_FOLLOW_S[1], poll_s * 1.5)
        yield Pause(min(poll_s, left_s))


def _output_lines(job_id: str, position: int, stop: int | None, retry: Retry) -> Flow[int]:
    """Emit the existing output lines from `position` on, up to `stop` if it is known. Return the next position."""
    backoff = Backoff(retry)
    while stop is None or position < stop:
        call = calls.output(job_id, position)
        failure: Failure | None = yield Open(call)
        if isinstance(failure, Reply) and failure.status == 200:
            reader = LineReader()
            while True:
                data = yield Read()
                if not isinstance(data, bytes):
                    failure = data
                    break
                for line in reader.feed(data):
                    position += 1
                    backoff.reset()
                    yield Emit(line)
            if failure is None and not reader.rest and (stop is None or position >= stop):
                return position
        lost = failure or ConnectionLost(UnexpectedReply(f"the output ended early, at row {position} of {stop}"))
        yield _pause(backoff, lost, call)
    return position


def watch(job_id: str, timeout_s: float | None, retry: Retry, event_streams: Semaphore) -> Flow[None]:
    """Emit the job's view after each change until the job has ended. Raise WaitTimeout at the deadline.

    Server-sent events only save requests; the job itself is the source of truth. Poll the job when no events arrive
    (a proxy buffers them, or the server has no free thread for the stream), and when every permit of `event_streams`
    is taken: an open stream occupies a thread of the server, and a trainer may wait for hundreds of jobs.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    poll_s, after = _POLL_S[0], ""
    while True:
        view: JobView = yield from exchange(calls.job(job_id), retry)
        yield Emit(view)
        if view.ended:
            return
        left_s = float("inf") if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise WaitTimeout(view, timeout_s or 0.0)
        if left_s > _POLL_BELOW_S and event_streams.acquire(blocking=False):
            try:
                seen, after = yield from _read_events(view, after, deadline, left_s)
            finally:
                event_streams.release()
            if seen:
                poll_s = _POLL_S[0]
                continue
        yield Pause(min(poll_s, left_s))
        poll_s = min(_POLL_S[1], poll_s * 1.5)


def _read_events(view: JobView, after: str, deadline: float | None, left_s: float) -> Flow[tuple[bool, str]]:
    """Emit a view for each event of a stream until the stream ends.

    Return whether an event arrived, and the event id to resume from.
    """
    opened = yield Open(calls.events(view.id, after, left_s))
    seen = False
    if isinstance(opened, ConnectionLost) or opened.status != 200 or opened.media_type != "text/event-stream":
        return seen, after
    reader = EventReader()
    while True:
        data = yield Read()
        if not isinstance(data, bytes):
            return seen, after
        for event in reader.feed(data):
            seen, after = True, event.id or after
            if event.name in ENDED:
                return seen, after
            view = view.after(event.name, event.data)
            yield Emit(view)
        if deadline is not None and deadline - time.monotonic() < _POLL_BELOW_S:
            return True, after


def jobs(kind: str, state: str, limit: int | None, retry: Retry) -> Flow[None]:
    """Emit views of jobs, newest first, one page per request."""
    cursor, left = "", limit
    while left is None or left > 0:
        page, cursor = yield from exchange(calls.jobs(kind, state, min(left or _PAGE, _PAGE), cursor), retry)
        for view in page[:left]:
            yield Emit(view)
        left = None if left is None else left - len(page)
        if not cursor or not page:
            return
