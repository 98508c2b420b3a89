"""The parent's watch over its children and its share in recovery: a thread of the worker's parent process.

A child that died is buried at once, for its parent knows. A child past the deadline of its batch is killed: one that
hangs in a driver, or holds the interpreter, cannot end itself.
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
from tasks.connections import explained
from tasks.errors import AssayError
from tasks.jobs.ledger import Ledger
from tasks.jobs.recovery import Recovery

log = logging.getLogger(__name__)

#: Seconds between two looks at the children.
LOOK_S = 0.25
#: Looks between two rounds of the rest.
EVERY = 4
#: A look that took so many seconds, or failed, means that Redis was away; for so long after it nobody is late.
SLOW_S = 1.0
FORGIVE_S = 5.0


class Watch:
    def __init__(
        self, recovery: Recovery, ledger: Ledger, url: str, incarnation: str, start_anew: Callable[[str], None]
    ) -> None:
        self._recovery = recovery
        self._start_anew = start_anew
        self._ledger = ledger
        self._state = ledger.state
        self._url = url
        self._incarnation = incarnation
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
                with explained(self._url):
                    self._look_after_children()
                    if look % EVERY == 0:
                        self._recovery.tick()
                said = ""
                if time.monotonic() - started > SLOW_S:  # Redis stood still, and whoever waited for it is not to blame
                    self._forgiving_until = time.monotonic() + FORGIVE_S
            except Exception as error:  # whatever it is: a watch that ended would watch nothing
                if str(error) != said:
                    known = isinstance(error, AssayError | psutil.Error)
                    log.warning("not watching: %s", error, exc_info=None if known else error)
                said = str(error)
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

    def _is_late(self, holder: str) -> bool:
        return time.monotonic() > self._forgiving_until and self._ledger.is_late(holder)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
