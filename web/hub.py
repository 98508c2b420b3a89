"""One reader of event streams for the whole process: however many clients watch, one connection to Redis does."""

import logging
import queue
import threading
import time
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from config import keys
from tasks.jobs.results import streams

log = logging.getLogger(__name__)

#: Milliseconds the reader waits for events before it looks for new watchers.
BLOCK_MS = 250
#: Seconds between two tries while Redis is away.
RETRY_S = 1.0
#: Seconds after the last watcher left until the reader's thread ends.
LINGER_S = 10.0

Event = tuple[str, dict[str, str]]


def order(event_id: str) -> tuple[int, int]:
    """Ids in the order of time: "5-10" comes after "5-9"."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


class Watch:
    """What one client still has to be told."""

    def __init__(self, job: str) -> None:
        self.job = job
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        self._events.put(event)

    def next(self, timeout_s: float) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None


class Hub:
    def __init__(self, state: Redis) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._watches: dict[str, list[Watch]] = {}
        self._read_to: dict[str, str] = {}
        self._reader: threading.Thread | None = None

    def open(self, job: str, after: str) -> Watch:
        """Events of the job from now on; at least those after this id, unless somebody watches it already."""
        watch = Watch(job)
        with self._lock:
            self._watches.setdefault(job, []).append(watch)
            self._read_to.setdefault(job, after)
            if self._reader is None:
                self._reader = threading.Thread(target=self._read, name="events", daemon=True)
                self._reader.start()
        return watch

    def close(self, watch: Watch) -> None:
        with self._lock:
            watches = self._watches.get(watch.job, [])
            if watch in watches:
                watches.remove(watch)
            if not watches:
                self._watches.pop(watch.job, None)
                self._read_to.pop(watch.job, None)

    @property
    def watched(self) -> int:
        with self._lock:
            return sum(map(len, self._watches.values()))

    def _read(self) -> None:
        idle_since, away = time.monotonic(), False
        while True:
            with self._lock:
                wanted = {keys.job_events(job): last for job, last in self._read_to.items()}
                jobs = {keys.job_events(job): job for job in self._read_to}
                if wanted:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > LINGER_S:
                    self._reader = None
                    return
            if not wanted:
                time.sleep(BLOCK_MS / 1000)
                continue
            try:
                reply: Any = self._state.xread(wanted, count=100, block=BLOCK_MS)  # type: ignore[arg-type]
            except RedisError as error:
                if not away:
                    log.warning("events cannot be read for now: %s", error)
                away = True
                time.sleep(RETRY_S)
                continue
            away = False
            with self._lock:
                for key, entries in streams(reply):
                    self._hand_out(jobs[key], entries)

    def _hand_out(self, job: str, entries: list[Event]) -> None:
        if job not in self._read_to:  # nobody watches it any more
            return
        for entry in entries:
            self._read_to[job] = entry[0]
            for watch in self._watches[job]:
                watch.put(entry)
