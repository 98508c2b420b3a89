"""Watchdog of a worker's child processes: a thread of the worker's parent process, which also runs recovery ticks.

The chunks of a dead child are recovered at once, because its parent knows of its death. A child past the deadline of
its batch is killed: a child that hangs in a driver, or holds the interpreter lock, cannot end itself. If a
child hangs before it takes a chunk, the whole worker restarts.
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
from tasks import probe
from tasks.connections import translate_redis_errors
from tasks.errors import AssayError
from tasks.jobs.dispatch.dispatcher import TASK
from tasks.jobs.dispatch.recovery import Recovery
from tasks.jobs.state.ledger import Ledger
from tasks.worker_registry import Worker

log = logging.getLogger(__name__)

#: Seconds between two checks of the children.
LOOK_S = 0.25
#: Checks of the children per tick of recovery.
EVERY = 4
#: A check that took longer than SLOW_S, or failed, means that Redis was unavailable; for FORGIVE_S seconds after it no
#: deadline is enforced.
SLOW_S = 1.0
FORGIVE_S = 5.0
#: Maximum seconds that an idle worker may leave a chunk untaken, although the chunk is announced every second; and
#: maximum seconds that a child may have the message of a chunk without taking a chunk.
UNTAKEN_S, STUCK_S = 10.0, 60.0


class Watchdog:
    def __init__(
        self,
        recovery: Recovery,
        ledger: Ledger,
        url: str,
        worker: Worker,
        reserved: Callable[[], list[str]],
        restart: Callable[[str], None],
    ) -> None:
        """`reserved` returns the tasks in flight on this worker. `restart` does not return."""
        self._recovery = recovery
        self._restart = restart
        self._ledger = ledger
        self._state = ledger.state
        self._url = url
        self._incarnation = f"{worker.name}/{worker.incarnation}"
        self._queue = worker.queues[0]
        self._reserved = reserved
        self._waiting = ("", False, 0.0)
        """The waiting chunk, whether a child has received a message of a chunk, and the start of this situation."""
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
                    self._check_children()
                    if look % EVERY == 0:
                        self._recovery.tick()
                        self._restart_if_stalled()
                        said = ""
                if time.monotonic() - started > SLOW_S:  # Redis was slow: the children are not to blame
                    self._forgiving_until = time.monotonic() + FORGIVE_S
            except Exception as error:  # the watchdog must survive every error
                if str(error) != said:
                    known = isinstance(error, AssayError | psutil.Error)
                    log.warning("watchdog check failed: %s", error, exc_info=None if known else error)
                said = str(error)
                self._waiting = ("", False, 0.0)
                self._forgiving_until = time.monotonic() + FORGIVE_S

    def _check_children(self) -> None:
        """Restart the worker if a child with a chunk has died; kill a late child. The ledger names the processes that
        hold chunks, and the operating system tells whether a child is alive."""
        for holder in cast(set[str], self._state.smembers(keys.holders())):
            incarnation, _, pid = holder.rpartition("/")
            if incarnation != self._incarnation:
                continue
            if not _is_alive(int(pid)):
                # Celery replaces a dead child, but may take seconds to notice, or wait for its task during shutdown.
                log.warning("child %s died: this worker restarts", pid)
                self._restart(holder)
            elif int(pid) != os.getpid() and self._is_late(holder):
                log.error("child %s is past the deadline of its batch: killed", pid)
                with suppress(ProcessLookupError):  # it ended just now
                    os.kill(int(pid), signal.SIGKILL)

    def _restart_if_stalled(self) -> None:
        """Restart an idle worker that takes no chunk. A waiting chunk is announced again every second. A worker that
        receives no message has lost its consumer, which may happen to Celery when Redis restarts and which Celery does
        not notice; or its child has the message and hangs."""
        first = [str(chunk) for chunk in self._state.zrange(keys.dispatched(self._queue), 0, 0)]
        holders = cast(set[str], self._state.smembers(keys.holders()))
        reserved = self._reserved()
        has_message = TASK in reserved
        # With a task that may take long and holds no chunk. With a broker queue per priority, the message of a chunk
        # may wait behind it.
        is_busy = any(task not in (TASK, probe.TASK) for task in reserved) or (bool(reserved) and not has_message)
        if not first or is_busy or any(holder.startswith(f"{self._incarnation}/") for holder in holders):
            self._waiting = ("", False, 0.0)
            return
        if (first[0], has_message) != self._waiting[:2]:
            self._waiting = (first[0], has_message, time.monotonic())
        waited_s = time.monotonic() - self._waiting[2]
        if has_message and waited_s > STUCK_S:
            log.error("a child got the message of a chunk %.0f s ago and took no chunk: this worker restarts", waited_s)
            self._restart("")
        elif not has_message and waited_s > UNTAKEN_S and self._recovery.has_messages(self._queue):
            log.error("no message arrives although chunks wait on %s: this worker restarts", self._queue)
            self._restart("")

    def _is_late(self, holder: str) -> bool:
        return time.monotonic() > self._forgiving_until and self._ledger.is_late(holder)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
