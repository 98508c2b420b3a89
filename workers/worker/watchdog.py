"""The parent's watch over its children and its share in recovery: a thread of the worker's parent process.

A child that died is buried at once, for its parent knows. A child past the deadline of its batch is killed: one that
hangs in a driver, or holds the interpreter, cannot end itself. So is one that hangs before it has taken anything.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import psutil

from config import keys
from tasks.connections import translate_redis_errors
from tasks.errors import AssayError
from tasks.jobs.dispatch.dispatcher import TASK
from tasks.jobs.dispatch.recovery import Recovery
from tasks.jobs.state.ledger import Ledger
from tasks.registry import Worker

log = logging.getLogger(__name__)

#: Seconds between two looks at the children.
LOOK_S = 0.25
#: Looks between two rounds of the rest.
EVERY = 4
#: A look that took so many seconds, or failed, means that Redis was away; for so long after it nobody is late.
SLOW_S = 1.0
FORGIVE_S = 5.0
#: Seconds an idle worker may leave a chunk untaken that is announced every second; and seconds that a child may have
#: such a message without taking anything.
DEAF_S, STUCK_S = 10.0, 60.0


class Watchdog:
    def __init__(
        self,
        recovery: Recovery,
        ledger: Ledger,
        url: str,
        worker: Worker,
        reserved: Callable[[], list[str]],
        start_anew: Callable[[str], None],
    ) -> None:
        """`reserved`: the tasks whose messages the worker has got and not ended. `start_anew` does not return."""
        self._recovery = recovery
        self._start_anew = start_anew
        self._ledger = ledger
        self._state = ledger.state
        self._url = url
        self._incarnation = f"{worker.name}/{worker.incarnation}"
        self._queue = worker.queues[0]
        self._reserved = reserved
        self._waiting = ("", False, 0.0)
        """The chunk that waits, whether a child was told of a chunk, and since when both are so."""
        self._forgiving_until = 0.0
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
                started = time.monotonic()
                with translate_redis_errors(self._url):
                    self._look_after_children()
                    if look % EVERY == 0:
                        self._recovery.tick()
                        self._end_if_deaf()
                said = ""
                if time.monotonic() - started > SLOW_S:  # Redis stood still, and whoever waited for it is not to blame
                    self._forgiving_until = time.monotonic() + FORGIVE_S
            except Exception as error:  # whatever it is: a watch that ended would watch nothing
                if str(error) != said:
                    known = isinstance(error, AssayError | psutil.Error)
                    log.warning("not watching: %s", error, exc_info=None if known else error)
                said = str(error)
                self._waiting = ("", False, 0.0)
                self._forgiving_until = time.monotonic() + FORGIVE_S

    def _look_after_children(self) -> None:
        """The ledger names the processes that hold chunks; whether one of ours is alive, the system knows."""
        for holder in cast(set[str], self._state.smembers(keys.holders())):
            incarnation, _, pid = holder.rpartition("/")
            if incarnation != self._incarnation:
                continue
            if not _is_alive(int(pid)):
                # Celery replaces a dead child, but may take seconds to notice, or wait for its task when it should end.
                log.warning("child %s died: this worker starts anew", pid)
                self._start_anew(holder)
            elif int(pid) != os.getpid() and self._is_late(holder):
                log.error("child %s is past the deadline of its batch: killed", pid)
                with suppress(ProcessLookupError):  # it ended just now
                    os.kill(int(pid), signal.SIGKILL)

    def _end_if_deaf(self) -> None:
        """A chunk that waits for an idle worker is announced again every second. A worker that hears nothing of it has
        lost its consumer, as may happen to Celery when Redis restarts, and does not find out by itself; or its child
        has the message and hangs."""
        first = [str(chunk) for chunk in self._state.zrange(keys.dispatched(self._queue), 0, 0)]
        holders = cast(set[str], self._state.smembers(keys.holders()))
        reserved = self._reserved()
        is_told = TASK in reserved
        is_busy = bool(reserved) and not is_told  # with something that may take long and holds no chunk
        if not first or is_busy or any(holder.startswith(f"{self._incarnation}/") for holder in holders):
            self._waiting = ("", False, 0.0)
            return
        if (first[0], is_told) != self._waiting[:2]:
            self._waiting = (first[0], is_told, time.monotonic())
        waited_s = time.monotonic() - self._waiting[2]
        if is_told and waited_s > STUCK_S:
            log.error("a child was told of a chunk %.0f s ago and has taken nothing: this worker starts anew", waited_s)
            self._start_anew("")
        elif not is_told and waited_s > DEAF_S and self._recovery.has_messages(self._queue):
            log.error("nothing comes in although chunks wait on %s: this worker starts anew", self._queue)
            self._start_anew("")

    def _is_late(self, holder: str) -> bool:
        return time.monotonic() > self._forgiving_until and self._ledger.is_late(holder)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
