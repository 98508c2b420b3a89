"""Requests counted for metrics: by this process as they come, and in Redis for all processes every few seconds."""

import logging
import threading
import time
from collections import Counter

from flask import Flask, Response, g, request
from redis import Redis
from redis.exceptions import RedisError

from tasks import totals
from web.services import services

log = logging.getLogger(__name__)

#: Seconds between two times that a process adds its counts to the totals.
FLUSH_S = 2.0
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")


class Traffic:
    def __init__(self, state: Redis) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._ended = threading.Event()

    def note(self, route: str, method: str, status: int, seconds: float) -> None:
        with self._lock:
            self._counts["http", route, method if method in METHODS else "other", f"{status // 100}xx"] += 1
            self._counts["http_s", route, totals.bucket("http_s", seconds)] += 1
            self._counts["http_s", route, "sum"] += round(seconds * totals.MILLION)

    def flush(self) -> None:
        """Add what was counted to the totals. While Redis is away it is kept."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            totals.add(self._state, counts)
        except RedisError as error:  # part of it may be counted twice then
            log.debug("requests are counted later: %s", error)
            with self._lock:
                self._counts.update(counts)

    def start(self) -> None:
        """Flush from now on, in a thread. For a process that serves; tests flush by hand."""
        threading.Thread(target=self._run, name="traffic", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()
        self.flush()

    def _run(self) -> None:
        while not self._ended.wait(FLUSH_S):
            self.flush()


def init_app(app: Flask) -> None:
    app.before_request(_begin)
    app.after_request(_end)


def _begin() -> None:
    g.began = time.monotonic()


def _end(response: Response) -> Response:
    # A path that nobody serves is anybody's invention, and no label.
    route = request.url_rule.rule if request.url_rule else "none"
    seconds = time.monotonic() - g.get("began", time.monotonic())
    services().traffic.note(route, request.method, response.status_code, seconds)
    return response
