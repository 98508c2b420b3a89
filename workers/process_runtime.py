"""What one worker process holds for its tasks: Redis clients, and one asyncio loop that they share.

All is built on first use, in the process that uses it: a prefork child must not inherit a loop or a socket.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from redis import Redis

from tasks.jobs.core import JobCore
from tasks.jobs.run import Runner
from tasks.registry import Worker

T = TypeVar("T")


class ProcessRuntime:
    """Implements tasks.runtime.Runtime."""

    def __init__(self, worker: Worker, core: JobCore) -> None:
        self.worker = worker.name
        self.state: Redis = core.state  # connects on first use, and again after a fork
        self._core = core
        self._worker = worker
        self._runner: Runner | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_pid = 0

    @property
    def runner(self) -> Runner:
        if self._runner is None:
            self._runner = self._core.runner(self._worker)
        return self._runner

    def run_async(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop_pid != os.getpid():
                self._loop, self._loop_pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="asyncio", daemon=True).start()
            return self._loop
