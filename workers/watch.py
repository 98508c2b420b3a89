"""The parent's watch over its children and its share in recovery: a thread of the worker's parent process.

A child that died is buried at once, for its parent knows. A child past the deadline of its batch is killed: one that
hangs in a driver, or holds the interpreter, cannot end itself.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import cast

import psutil
from redis import Redis

from config import keys
from tasks.connections import explained
from tasks.errors import AssayError
from tasks.jobs.recovery import Recovery

log = logging.getLogger(__name__)

#: Seconds between two looks at the children.
LOOK_S = 0.25
#: Looks between two rounds of the rest.
EVERY = 4


class Watch:
    def __init__(
        self, recovery: Recovery, state: Redis, url: str, incarnation: str, children: Callable[[], list[int]]
    ) -> None:
        self._recovery = recovery
        self._state = state
        self._url = url
        self._incarnation = incarnation
        self._children = children
        self._known: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        said = ""
        look = 0
        while not self._ended.wait(LOOK_S):
            look += 1
            try:
                with explained(self._url):
                    self._bury_dead_children()
                    if look % EVERY == 0:
                        self._kill_late_children()
                        self._recovery.tick()
                        said = ""
            except AssayError as error:
                if str(error) != said:
                    log.warning("not watching: %s", error)
                said = str(error)

    def _bury_dead_children(self) -> None:
        alive = {pid for pid in self._children() if _is_alive(pid)}
        for pid in self._known - alive:
            self._recovery.bury(f"{self._incarnation}/{pid}")
            self._known.discard(pid)  # only now: if Redis was away, it is buried at the next look
        self._known |= alive

    def _kill_late_children(self) -> None:
        for pid in self._known:
            batch = keys.batch(f"{self._incarnation}/{pid}")
            pipeline = self._state.pipeline(transaction=False)
            pipeline.hget(batch, "deadline_at")
            pipeline.time()
            deadline, (seconds, _) = pipeline.execute()
            if (
                deadline
                and float(cast(str, deadline)) < seconds
                and self._state.exists(keys.held(f"{self._incarnation}/{pid}"))
            ):
                log.error("child %d is past the deadline of its batch: killed", pid)
                self._state.hset(batch, "late", "1")
                os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
