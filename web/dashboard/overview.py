"""Everything at a glance: one snapshot, computed once per process however many pages look; and a stream of them."""

import socket
import threading
import time
from collections.abc import Iterator

from flask import Blueprint, Flask, Response, current_app, request
from redis.exceptions import RedisError

from tasks.connections import explain, redact
from tasks.errors import AssayError
from web.answers import encode
from web.dashboard.snapshot import Snapshots
from web.description import described
from web.refusal import Refused
from web.schemas import OverviewView
from web.services import Services, services
from web.waiting import is_gone

blueprint = Blueprint("overview", __name__, url_prefix="/v1/overview")

#: Seconds for which a snapshot is new enough.
FRESH_S = 1.5
#: Milliseconds after which a page that lost the stream should come back.
RETRY_MS = 2000


def init_app(app: Flask) -> None:
    app.extensions["overview"] = Overview(app)


class Overview:
    """The last snapshot, as it goes over the wire."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._snapshots = Snapshots()
        self._at = float("-inf")
        self._last: bytes | Exception = b""

    def read(self) -> bytes:
        """Whoever finds it too old makes the next one; the others wait for that. An error is kept as long: while Redis
        is away, a hundred pages ask it once. Raises what Redis raises."""
        with self._lock:
            if time.monotonic() - self._at > FRESH_S:
                try:
                    with self._app.app_context():
                        self._last = encode(self._snapshots.take(services()))
                except (RedisError, AssayError) as error:
                    self._last = error
                self._at = time.monotonic()
            last = self._last
        if isinstance(last, Exception):
            raise last
        return last


@blueprint.get("")
@described("Everything at a glance: health, queues, devices, pools, cache, API profiles, jobs.", {200: OverviewView})
def look() -> Response:
    return Response(_overview().read(), mimetype="application/json")


@blueprint.get("/events")
@described(
    "The same as server-sent events: a `snapshot` every 1.5 seconds, or `trouble` with a `detail` while Redis is away. "
    "It ends after `ASSAY_MAX_WAIT_S`; a browser comes back by itself.",
    {200: "text/event-stream"},
)
def events() -> Response:
    seats = services().seats
    if not seats.take():
        raise Refused(
            503, "too_many_streams", "Too many streams", f"{seats.total} clients watch or wait already, all that this "
            "process has threads for: ask GET /v1/overview now and then, or try again.", headers={"Retry-After": "5"},
        )  # fmt: skip
    stream = _stream(_overview(), services(), request.environ.get("gunicorn.socket"))
    response = Response(stream, mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})
    response.call_on_close(seats.give_back)
    return response


def _overview() -> Overview:
    overview: Overview = current_app.extensions["overview"]
    return overview


def _stream(overview: Overview, shared: Services, client: socket.socket | None) -> Iterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MS
    last, until = b"", time.monotonic() + shared.settings.max_wait_s
    while True:
        told = _event(overview, shared)
        if told != last:
            yield told
        last = told
        left_s = until - time.monotonic()
        if left_s <= 0 or is_gone(client) or not shared.seats.is_serving():
            break
        time.sleep(min(left_s, FRESH_S / 2))
    if client and not shared.seats.is_serving():
        client.shutdown(socket.SHUT_RDWR)  # as for jobs: the page comes back by itself


def _event(overview: Overview, shared: Services) -> bytes:
    try:
        return b"event: snapshot\ndata: %s\n\n" % overview.read()
    except RedisError as error:
        return _trouble(explain(error, redact(shared.settings.redis_url)))
    except AssayError as error:
        return _trouble(error)


def _trouble(error: Exception) -> bytes:
    return b"event: trouble\ndata: %s\n\n" % encode({"detail": str(error)})
