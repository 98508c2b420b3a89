"""Request metrics: counted in this process, and added to the totals in Redis every few seconds."""

import logging
import threading
import time
from collections import Counter

from flask import Flask, Response, g, request
from redis import Redis
from redis.exceptions import RedisError

from tasks import counters
from web.services import services

log = logging.getLogger(__name__)

#: Interval in seconds at which a process adds its counts to the totals.
FLUSH_S = 2.0
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")


class RequestMetrics:
    def __init__(self, state: Redis) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._ended = threading.Event()

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        with self._lock:
            self._counts["http", route, method if method in METHODS else "other", f"{status // 100}xx"] += 1
            self._counts["http_s", route, counters.bucket("http_s", seconds)] += 1
            self._counts["http_s", route, "sum"] += round(seconds * counters.MILLION)

    def flush(self) -> None:
        """Add the counts to the totals in Redis. While Redis is unavailable they stay in this process."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            counters.add(self._state, counts)
        except RedisError as error:  # a part of the counts may be added twice then
            log.debug("request counts are not written now, and will be retried: %s", error)
            with self._lock:
                self._counts.update(counts)

    def start(self) -> None:
        """Start the thread that flushes. For a process that serves requests; tests call `flush` themselves."""
        threading.Thread(target=self._run, name="request metrics", daemon=True).start()

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
    # An unknown path is text that a client made up: it must not become a label.
    route = request.url_rule.rule if request.url_rule else "none"
    seconds = time.monotonic() - g.get("began", time.monotonic())
    services().request_metrics.count(route, request.method, response.status_code, seconds)
    return response
