"""What happens to a job, as it happens: server-sent events, which a client that lost them resumes where it was.

`web/hub.py` reads for all who watch; here is what one of them is told.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from flask import Blueprint, Response, request

from config import keys
from tasks.errors import InvalidRequest
from tasks.jobs.model import ACTIVE, Job
from web.answers import encode, job_view
from web.description import described
from web.hub import Event, order
from web.jobs import find
from web.refusal import Refused
from web.services import Services, services
from web.waiting import is_gone

blueprint = Blueprint("events", __name__, url_prefix="/v1/jobs")

ENDS = ("done", "failed", "cancelled")
#: Seconds without an event after which a comment is sent, so that nobody in between takes the stream for dead.
PING_S = 15.0
#: Seconds between two looks at whether the client, and this process, are still there.
LOOK_S = 1.0
#: Milliseconds after which a client that lost the stream should come back.
RETRY_MS = 2000
PAGE = 500
#: Seconds between two times that one watcher is told how fast the job is, which takes a look at it.
FIGURES_S = 1.0
FIGURES = ("ok", "failed", "total", "cached", "rate", "eta_s", "reasons")


@blueprint.get("/<job_id>/events")
@described(
    "Watch a job: server-sent events until it ends.",
    {200: "text/event-stream", 204: ()},
    errors=(404, 422),
    headers={
        "Last-Event-ID": "Go on after this event. Where it is no longer kept, a `snapshot` of the job comes first."
    },
)
def events(job_id: str) -> Response:
    job, seats = find(job_id), services().seats
    stream = _Stream(services(), job, _last_event_id(), request.environ.get("gunicorn.socket"))
    if stream.is_over:  # 204 tells a browser not to come back
        return Response(status=204)
    if not seats.take():
        raise Refused(
            503, "too_many_streams", "Too many streams", f"{seats.total} clients watch or wait already, all that this "
            "process has threads for: ask GET /v1/jobs/{id} now and then, or try again.", headers={"Retry-After": "5"},
        )  # fmt: skip
    response = Response(stream.run(), mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})
    response.call_on_close(seats.give_back)
    return response


def _last_event_id() -> str | None:
    given = request.headers.get("Last-Event-ID")
    if not given:
        return None
    milliseconds, dash, number = given.partition("-")
    if not (given.isascii() and milliseconds.isdigit() and (number.isdigit() or not dash) and len(given) <= 40):
        raise InvalidRequest("Last-Event-ID: give the id of an event as it was.", field="Last-Event-ID")
    return given


class _Stream:
    def __init__(self, shared: Services, job: Job, after: str | None, client: socket.socket | None) -> None:
        self._shared, self._job, self._client = shared, job, client
        self._key = keys.job_events(job.id)
        self._resumed = after is not None
        self._last = after or "0-0"
        self._newest = cast(list[Event], shared.state.xrevrange(self._key, count=1))
        oldest = cast(list[Event], shared.state.xrange(self._key, count=1))
        # A job's first event is `queued`: while that is kept, nothing was trimmed. An id ahead of all is none of ours.
        was_trimmed = bool(oldest) and oldest[0][1]["event"] != "queued" and order(self._last) < order(oldest[0][0])
        is_foreign = bool(self._newest) and order(self._last) > order(self._newest[0][0])
        self._needs_snapshot = was_trimmed or is_foreign or not self._newest
        self._ended = False
        self._figures_at = float("-inf")

    @property
    def is_over(self) -> bool:
        """The client has seen all there is, and no more will come."""
        return self._resumed and not self._job.is_active and bool(self._newest) and self._last == self._newest[0][0]

    def run(self) -> Iterator[bytes]:
        yield b"retry: %d\n\n" % RETRY_MS
        if self._needs_snapshot:
            # The last event follows: a client that looks for the end only finds it, and has an id to go on from.
            yield _format("snapshot", job_view(self._job))
            yield from map(self._told, self._newest)
        yield from self._kept()
        watch = self._shared.hub.open(self._job.id, self._last)
        try:
            # Between the look above and the watch something may have happened that the hub had handed out already.
            yield from self._kept()
            silent_since = time.monotonic()
            while self._goes_on():
                event = watch.next(LOOK_S)
                if event and order(event[0]) > order(self._last):
                    yield self._told(event, self._figures(event))
                    silent_since = time.monotonic()
                elif event is None and time.monotonic() - silent_since >= PING_S:
                    yield b": ping\n\n"
                    silent_since = time.monotonic()
                    self._ended = not self._is_active()
            if self._client and not self._shared.seats.is_serving():
                # Cut off, not ended: the client comes back with the last id. A polite end would wait for each in turn.
                self._client.shutdown(socket.SHUT_RDWR)
        finally:
            self._shared.hub.close(watch)

    def _goes_on(self) -> bool:
        # Without the look at the client its thread would be kept until the next ping fails.
        return not (self._ended or is_gone(self._client)) and self._shared.seats.is_serving()

    def _kept(self) -> Iterator[bytes]:
        while page := self._shared.state.xrange(self._key, min=f"({self._last}", count=PAGE):
            for event in cast(list[Event], page):
                yield self._told(event)
        if not self._ended and not self._is_active():
            self._ended = True

    def _figures(self, event: Event) -> dict[str, Any]:
        """What is true of the job now, and only then worth telling: with its progress, now and then."""
        if event[1]["event"] != "progress" or time.monotonic() - self._figures_at < FIGURES_S:
            return {}
        self._figures_at = time.monotonic()
        found = self._shared.core.store.present([self._job.id])
        return {name: getattr(job, name) for job in found for name in FIGURES}

    def _told(self, event: Event, more: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        name, fields = event
        self._last = name
        kind = fields["event"]
        # A job that was retried has more than one end: only the one after which it rests is the last.
        if kind in ENDS:
            self._ended = not self._is_active()
        data: dict[str, Any] = {"at": order(name)[0] / 1000}
        trials = self._job.trials
        data |= {key: int(text) // trials if text.isdigit() else text for key, text in fields.items() if key != "event"}
        return _format(kind, data | dict(more), name)

    def _is_active(self) -> bool:
        return self._shared.core.store.states([self._job.id])[0] in ACTIVE


def _format(kind: str, data: dict[str, Any], name: str = "") -> bytes:
    head = f"id: {name}\n" if name else ""
    return f"{head}event: {kind}\ndata: ".encode() + encode(data) + b"\n\n"
