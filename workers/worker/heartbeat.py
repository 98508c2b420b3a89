"""Heartbeat of a worker: a thread of its parent process that renews the worker's record in the registry.

It runs in the parent, which runs no tasks itself: a child that is busy, or hangs in a driver, can neither stop the
heartbeat nor send it.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tasks.connections import translate_redis_errors
from tasks.errors import AssayError, WorkerNameTaken
from tasks.worker_registry import Registry, State, Worker
from workers.processes.signal_event import SignalEvent

log = logging.getLogger(__name__)


class Heartbeat:
    def __init__(
        self,
        registry: Registry,
        worker: Worker,
        url: str,
        interval_s: float,
        orphan_grace_s: float,
        active: Callable[[], int] = lambda: 0,
        measured: Callable[[Worker], Worker] = lambda worker: worker,
    ) -> None:
        """`measured` adds the worker's resource figures to the record."""
        self._registry = registry
        self._worker = worker
        self._url = url
        self._interval_s = interval_s
        self._active = active
        self._measured = measured
        self._parent = os.getppid()
        self._orphan_grace_s = orphan_grace_s
        self._orphan_since: float | None = None
        self._state: State = "starting"
        self._changed = SignalEvent()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def register(self) -> None:
        """Announce the worker for the first time. Raises WorkerNameTaken, and RedisUnavailable or RedisRefused."""
        with translate_redis_errors(self._url):
            self._registry.announce(self._worker)

    def start(self) -> None:
        self._thread.start()

    def say(self, state: State) -> None:
        """Change the published state of the worker, and publish it at once."""
        self._state = state
        self._changed.set()

    def leave(self) -> None:
        """Stop the heartbeat and delete the record, so that no process waits for the record to expire."""
        self._ended.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(self._interval_s + 1)
        try:
            with translate_redis_errors(self._url):
                self._registry.leave(self._worker)
        except AssayError as error:  # the record expires by itself
            log.warning("cannot delete the worker's record: %s", error)

    def _end_if_orphaned(self) -> None:
        """Stop the worker if its launcher has died. Kill it after the grace period, since no launcher enforces this."""
        if os.getppid() == self._parent:
            return
        if self._orphan_since is None:
            self._orphan_since = time.monotonic()
            log.warning("the launcher has died: stopping")
            os.kill(os.getpid(), signal.SIGTERM)
        elif time.monotonic() - self._orphan_since > self._orphan_grace_s:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    def _beat(self) -> None:
        said = ""
        while not self._ended.is_set():
            self._end_if_orphaned()
            try:
                with translate_redis_errors(self._url):
                    now = replace(self._worker, state=self._state, active=self._active())
                    self._registry.announce(self._measured(now))
                if said:
                    log.info("heartbeat is back")
                said = ""
            except WorkerNameTaken as error:
                # This worker was silent for so long that a new worker got its name.
                log.error("%s This worker stops.", error)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except AssayError as error:
                if str(error) != said:
                    log.warning("no heartbeat: %s", error)
                said = str(error)
            self._changed.wait(self._interval_s)
