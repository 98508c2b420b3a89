"""The conversations with the server, each written once for the blocking and the asyncio client (see `steps.py`)."""

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
from assay.retry import Failure, Patience, Retry
from assay.steps import Emit, Exchange, Flow, Lost, Open, Pause, Read, Reply

log = logging.getLogger("assay")
T = TypeVar("T")

#: Seconds before the end of a wait when polling takes over: a silent stream would sleep through it.
_POLL_BELOW_S = 16.0
_POLL_S = (0.05, 1.0)
#: Seconds between two looks for further rows of an output: after some came, and when none come for long.
_FOLLOW_S = (0.2, 2.0)
#: Jobs asked for at a time.
_PAGE = 50


def exchange(call: Call[T], retry: Retry) -> Flow[T]:
    """One call, repeated until it is answered."""
    patience = Patience(retry)
    while True:
        reply = yield Exchange(call)
        if isinstance(reply, Reply) and (200 <= reply.status < 300 or reply.status in call.accepted):
            return _parsed(call, reply)
        yield _pause(patience, reply, call)


def _parsed(call: Call[T], reply: Reply) -> T:
    try:
        return call.parse(reply)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnexpectedReply(f"{call.method} {call.path} was answered with {reply.content[:200]!r}.") from error


def _pause(patience: Patience, failure: Failure, call: Call[T]) -> Pause:
    delay = patience.delay_after(failure, call.repeatable)
    said = failure.cause if isinstance(failure, Lost) else f"HTTP {failure.status}"
    log.info("%s %s: %s; again in %.1f s", call.method, call.path, said or type(said).__name__, delay)
    return Pause(delay)


def rows(job_id: str, start: int, limit: int | None, stop: int | None, retry: Retry) -> Flow[None]:
    """Emits rows in input order. After a cut it goes on behind the last row, so none is doubled and none lost.

    `stop` is the index up to which there are rows for certain: a stream that ends earlier was cut without a sign.
    """
    patience, position, left = Patience(retry), start, limit
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
                    patience.renew()
                    yield Emit(row)
                if not isinstance(data, bytes):
                    failure = data
                    break
            if failure is None and (stop is None or position >= stop or left == 0):
                return
        lost = failure or Lost(UnexpectedReply(f"the stream ended at row {position} of {stop}"))
        yield _pause(patience, lost, call)


def _rows(reader: LineReader, data: bytes | Lost | None) -> Iterator[Row]:
    """The rows that are whole now. A cut leaves half a line behind, a proper end may leave a whole one."""
    lines = reader.feed(data) if isinstance(data, bytes) else iter((reader.rest,) if data is None else ())
    for line in lines:
        if line.strip():
            try:
                yield Row.from_json(json.loads(line))
            except ValueError as error:
                raise UnexpectedReply(f"Expected a row, got {line[:200]!r}.") from error


def output(job_id: str, start: int, wait: bool, timeout_s: float | None, retry: Retry) -> Flow[None]:
    """Emits the job's view, then the lines of its output that are there by now, and so on until it has ended.

    A line is emitted once and whole, whatever happens to connections. Without `wait` it is over after one look.
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
    """Emits the lines there are from this position on, up to `stop` if that is known. Gives the position reached."""
    patience = Patience(retry)
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
                    patience.renew()
                    yield Emit(line)
            if failure is None and not reader.rest and (stop is None or position >= stop):
                return position
        yield _pause(patience, failure or Lost(UnexpectedReply(f"the output ended at row {position} of {stop}")), call)
    return position


def watch(job_id: str, timeout_s: float | None, retry: Retry, seats: Semaphore) -> Flow[None]:
    """Emits the job's view whenever it changes, last when it has ended. Raises WaitTimeout when the time is up.

    Events are hints that save asking; the job itself is the truth. Where no events come through (a proxy that holds
    them back, a server that has no thread left for them) the job is asked now and then. So it is when all seats are
    taken: an open stream costs the server a thread, and a trainer may wait for hundreds of jobs.
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
        if left_s > _POLL_BELOW_S and seats.acquire(blocking=False):
            try:
                seen, after = yield from _listen(view, after, deadline, left_s)
            finally:
                seats.release()
            if seen:
                poll_s = _POLL_S[0]
                continue
        yield Pause(min(poll_s, left_s))
        poll_s = min(_POLL_S[1], poll_s * 1.5)


def _listen(view: JobView, after: str, deadline: float | None, left_s: float) -> Flow[tuple[bool, str]]:
    """Emits what one event stream tells, until it ends. Gives whether it told anything, and the id to resume from."""
    opened = yield Open(calls.events(view.id, after, left_s))
    seen = False
    if isinstance(opened, Lost) or opened.status != 200 or opened.media_type != "text/event-stream":
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
    """Emits views of jobs, newest first, page by page."""
    cursor, left = "", limit
    while left is None or left > 0:
        page, cursor = yield from exchange(calls.jobs(kind, state, min(left or _PAGE, _PAGE), cursor), retry)
        for view in page[:left]:
            yield Emit(view)
        left = None if left is None else left - len(page)
        if not cursor or not page:
            return
