"""Reader of job event streams, shared by the whole process: any number of clients needs a single Redis connection."""

import logging
import queue
import threading
import time
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from config import keys
from tasks.jobs.queries.results import streams

log = logging.getLogger(__name__)

#: Milliseconds that the reader blocks for events before it looks for new subscriptions.
BLOCK_MS = 250
#: Seconds between retries while Redis is unavailable.
RETRY_S = 1.0
#: Seconds from the end of the last subscription until the reader's thread ends.
LINGER_S = 10.0

Event = tuple[str, dict[str, str]]


def order(event_id: str) -> tuple[int, int]:
    """Return the sort key of an event id, in the order of time: "5-10" comes after "5-9"."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


class Subscription:
    """Queue of the events that a client has not received yet."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        self._events.put(event)

    def next(self, timeout_s: float) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None


class EventHub:
    def __init__(self, state: Redis) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._read_to: dict[str, str] = {}
        self._reader: threading.Thread | None = None

    def open(self, job_id: str, after: str) -> Subscription:
        """Subscribe to the job's events from now on, or, if it has no other subscription, from this event id on."""
        subscription = Subscription(job_id)
        with self._lock:
            self._subscriptions.setdefault(job_id, []).append(subscription)
            self._read_to.setdefault(job_id, after)
            if self._reader is None:
                self._reader = threading.Thread(target=self._read, name="events", daemon=True)
                self._reader.start()
        return subscription

    def close(self, subscription: Subscription) -> None:
        with self._lock:
            subscriptions = self._subscriptions.get(subscription.job_id, [])
            if subscription in subscriptions:
                subscriptions.remove(subscription)
            if not subscriptions:
                self._subscriptions.pop(subscription.job_id, None)
                self._read_to.pop(subscription.job_id, None)

    @property
    def watched(self) -> int:
        with self._lock:
            return sum(map(len, self._subscriptions.values()))

    def _read(self) -> None:
        idle_since, is_away = time.monotonic(), False
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
                if not is_away:
                    log.warning("job events cannot be read, and will be retried: %s", error)
                is_away = True
                time.sleep(RETRY_S)
                continue
            is_away = False
            with self._lock:
                for key, entries in streams(reply):
                    self._deliver(jobs[key], entries)

    def _deliver(self, job_id: str, entries: list[Event]) -> None:
        if job_id not in self._read_to:  # its last subscription has ended
            return
        for entry in entries:
            self._read_to[job_id] = entry[0]
            for subscription in self._subscriptions[job_id]:
                subscription.put(entry)
