"""`/v1/jobs/{id}/events`: the events of a job as server-sent events, which a client can resume after a disconnect.

`web/jobs/event_hub.py` reads the events of every stream; this module writes the stream of a client.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from flask import Blueprint, Response, request

from config import keys
from tasks.errors import InvalidRequest
from tasks.jobs.model import Job
from tasks.jobs.states import ACTIVE, ENDED
from web.http.http_error import HttpError
from web.http.json_responses import encode
from web.http.long_polling import is_gone
from web.http.openapi.describe import described
from web.jobs.event_hub import Event, order
from web.jobs.job_responses import job_view
from web.jobs.views import find
from web.services import Services, services

blueprint = Blueprint("events", __name__, url_prefix="/v1/jobs")

#: Seconds without an event after which a comment is sent, so that no proxy closes the stream as idle.
PING_S = 15.0
#: Interval in seconds at which a stream checks whether its client is connected, and whether this process stops.
CHECK_S = 1.0
#: Milliseconds after which a client should reconnect.
RETRY_MS = 2000
PAGE = 500
#: Interval in seconds at which a stream includes the job's figures, which need a read of the job.
FIGURES_S = 1.0
FIGURES = ("ok", "failed", "total", "cached", "rate", "eta_s", "reasons")


@blueprint.get("/<job_id>/events")
@described(
    "Stream the events of a job (server-sent events) until it ends.",
    {200: "text/event-stream", 204: ()},
    errors=(404, 422),
    headers={"Last-Event-ID": "Resume after this event. If it has been trimmed, a `snapshot` of the job comes first."},
)
def events(job_id: str) -> Response:
    job, long_requests = find(job_id), services().long_requests
    stream = _Stream(services(), job, _last_event_id(), request.environ.get("gunicorn.socket"))
    if stream.is_over:  # 204 tells a browser not to reconnect
        return Response(status=204)
    if not long_requests.take():
        raise HttpError(
            503,
            "too_many_streams",
            "Too many streams",
            f"{long_requests.total} streams and waiting requests are open, the limit of "
            "this process: poll GET /v1/jobs/{id} instead, or try again.",
            headers={"Retry-After": "5"},
        )
    response = Response(stream.run(), mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})
    response.call_on_close(long_requests.give_back)
    return response


def _last_event_id() -> str | None:
    given = request.headers.get("Last-Event-ID")
    if not given:
        return None
    milliseconds, dash, number = given.partition("-")
    if not (given.isascii() and milliseconds.isdigit() and (number.isdigit() or not dash) and len(given) <= 40):
        raise InvalidRequest(
            "Last-Event-ID: is not an event id; send the `id` of an event unchanged.", field="Last-Event-ID"
        )
    return given


class _Stream:
    def __init__(self, shared: Services, job: Job, after: str | None, client: socket.socket | None) -> None:
        self._shared, self._job, self._client = shared, job, client
        self._key = keys.job_events(job.id)
        self._resumed = after is not None
        self._last = after or "0-0"
        self._newest = cast(list[Event], shared.state.xrevrange(self._key, count=1))
        oldest = cast(list[Event], shared.state.xrange(self._key, count=1))
        # A job's first event is `queued`: while it is stored, no event was trimmed. An id after the newest is not of
        # this job.
        was_trimmed = bool(oldest) and oldest[0][1]["event"] != "queued" and order(self._last) < order(oldest[0][0])
        is_unknown = bool(self._newest) and order(self._last) > order(self._newest[0][0])
        self._needs_snapshot = was_trimmed or is_unknown or not self._newest
        if not self._newest and (end := _rebuilt_end(job)):
            self._newest = [end]
            if order(self._last) > order(end[0]):  # the client has seen the end, whose id was a little later
                self._last = end[0]
        self._ended = False
        self._figures_at = float("-inf")

    @property
    def is_over(self) -> bool:
        """Whether the client has received every event, and no more will follow."""
        return self._resumed and not self._job.is_active and bool(self._newest) and self._last == self._newest[0][0]

    def run(self) -> Iterator[bytes]:
        yield b"retry: %d\n\n" % RETRY_MS
        if self._needs_snapshot:
            # The last event follows the snapshot: a client that waits for the end finds it, and has an id to resume
            # from.
            yield _format("snapshot", job_view(self._job))
            yield from map(self._encode_event, self._newest)
        yield from self._stored()
        subscription = self._shared.event_hub.open(self._job.id, self._last)
        try:
            # Events between the read above and the subscription may have been delivered to other subscriptions already.
            yield from self._stored()
            silent_since = time.monotonic()
            while self._continues():
                event = subscription.next(CHECK_S)
                if event and order(event[0]) > order(self._last):
                    yield self._encode_event(event, self._figures(event))
                    silent_since = time.monotonic()
                elif event is None and time.monotonic() - silent_since >= PING_S:
                    yield b": ping\n\n"
                    silent_since = time.monotonic()
                    self._ended = not self._is_active()
            if self._client and not self._shared.long_requests.is_serving():
                # Cut the connection: the client reconnects with its last id. An orderly end would wait for each client.
                self._client.shutdown(socket.SHUT_RDWR)
        finally:
            self._shared.event_hub.close(subscription)

    def _continues(self) -> bool:
        # Without the check of the client, its thread would be held until the next ping fails.
        return not (self._ended or is_gone(self._client)) and self._shared.long_requests.is_serving()

    def _stored(self) -> Iterator[bytes]:
        while page := self._shared.state.xrange(self._key, min=f"({self._last}", count=PAGE):
            for event in cast(list[Event], page):
                yield self._encode_event(event)
        if not self._ended and not self._is_active():
            self._ended = True

    def _figures(self, event: Event) -> dict[str, Any]:
        """Return the job's current figures with a progress event, at most every FIGURES_S seconds; else nothing."""
        if event[1]["event"] != "progress" or time.monotonic() - self._figures_at < FIGURES_S:
            return {}
        self._figures_at = time.monotonic()
        found = self._shared.core.store.present([self._job.id])
        return {name: getattr(job, name) for job in found for name in FIGURES}

    def _encode_event(self, event: Event, more: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        name, fields = event
        self._last = name
        kind = fields["event"]
        # A retried job has several end events: the stream ends only after the last.
        if kind in ENDED:
            self._ended = not self._is_active()
        data: dict[str, Any] = {"at": order(name)[0] / 1000}
        trials = self._job.trials
        data |= {key: int(text) // trials if text.isdigit() else text for key, text in fields.items() if key != "event"}
        return _format(kind, data | dict(more), name)

    def _is_active(self) -> bool:
        return self._shared.core.store.states([self._job.id])[0] in ACTIVE


def _rebuilt_end(job: Job) -> Event | None:
    """Return the last event of an ended job whose events have expired, as the job's record tells it."""
    if job.is_active or job.ended_at is None:
        return None
    counts = {"ok": job.ok, "failed": job.failed, "total": job.total}
    rows = {name: str(number * job.trials) for name, number in counts.items()}
    return f"{int(1000 * job.ended_at)}-0", {"event": job.state, **rows, "reason": job.reason}


def _format(kind: str, data: dict[str, Any], name: str = "") -> bytes:
    head = f"id: {name}\n" if name else ""
    return f"{head}event: {kind}\ndata: ".encode() + encode(data) + b"\n\n"
