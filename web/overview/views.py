"""`/v1/overview`: a snapshot of the whole system, and a stream of snapshots.

A process computes each snapshot a single time, however many pages read it.
"""

import socket
import threading
import time
from collections.abc import Iterator

from flask import Blueprint, Flask, Response, current_app, request
from redis.exceptions import RedisError

from tasks.connections import redact, translate_redis_error
from tasks.errors import AssayError
from web.http.http_error import HttpError
from web.http.json_responses import encode
from web.http.long_polling import is_gone
from web.http.openapi.describe import described
from web.overview.schemas import OverviewView
from web.overview.snapshot import SnapshotBuilder
from web.services import Services, services

blueprint = Blueprint("overview", __name__, url_prefix="/v1/overview")

#: Seconds for which a snapshot is cached.
FRESH_S = 1.5
#: Milliseconds after which a page should reconnect.
RETRY_MS = 2000


def init_app(app: Flask) -> None:
    app.extensions["overview"] = OverviewCache(app)


class OverviewCache:
    """Cache of the last snapshot, serialized."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._snapshots = SnapshotBuilder()
        self._at = float("-inf")
        self._last: bytes | Exception = b""

    def read(self) -> bytes:
        """Return the snapshot, and build it again if it has expired; concurrent readers wait for the new snapshot.

        An error is cached too: while Redis is unavailable, a hundred pages cause a single connection attempt. Raises
        RedisError, AssayError.
        """
        with self._lock:
            if time.monotonic() - self._at > FRESH_S:
                try:
                    with self._app.app_context():
                        self._last = encode(self._snapshots.build(services()))
                except (RedisError, AssayError) as error:
                    self._last = error
                self._at = time.monotonic()
            last = self._last
        if isinstance(last, Exception):
            raise last
        return last


@blueprint.get("")
@described(
    "Read a snapshot of the system: health, queues, devices, pools, cache, API profiles, jobs.", {200: OverviewView}
)
def look() -> Response:
    return Response(_overview().read(), mimetype="application/json")


@blueprint.get("/events")
@described(
    "Stream snapshots as server-sent events: a `snapshot` every 1.5 seconds, or `trouble` with a `detail` while "
    "Redis is "
    "unavailable. The stream ends after `ASSAY_MAX_WAIT_S`; a browser reconnects by itself.",
    {200: "text/event-stream"},
)
def events() -> Response:
    long_requests = services().long_requests
    if not long_requests.take():
        raise HttpError(
            503,
            "too_many_streams",
            "Too many streams",
            f"{long_requests.total} streams and waiting requests are open, the limit of "
            "this process: poll GET /v1/overview instead, or try again.",
            headers={"Retry-After": "5"},
        )
    stream = _stream(_overview(), services(), request.environ.get("gunicorn.socket"))
    response = Response(stream, mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})
    response.call_on_close(long_requests.give_back)
    return response


def _overview() -> OverviewCache:
    overview: OverviewCache = current_app.extensions["overview"]
    return overview


def _stream(overview: OverviewCache, shared: Services, client: socket.socket | None) -> Iterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MS
    last, until = b"", time.monotonic() + shared.settings.max_wait_s
    while True:
        event = _event(overview, shared)
        if event != last:
            yield event
        last = event
        left_s = until - time.monotonic()
        if left_s <= 0 or is_gone(client) or not shared.long_requests.is_serving():
            break
        time.sleep(min(left_s, FRESH_S / 2))
    if client and not shared.long_requests.is_serving():
        client.shutdown(socket.SHUT_RDWR)  # cut the connection, as for job events: the page reconnects


def _event(overview: OverviewCache, shared: Services) -> bytes:
    try:
        return b"event: snapshot\ndata: %s\n\n" % overview.read()
    except RedisError as error:
        return _trouble(translate_redis_error(error, redact(shared.settings.redis_url)))
    except AssayError as error:
        return _trouble(error)


def _trouble(error: Exception) -> bytes:
    return b"event: trouble\ndata: %s\n\n" % encode({"detail": str(error)})
