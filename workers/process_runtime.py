"""What one worker process holds for its tasks: Redis clients, and one asyncio loop that they share.

All is built on first use, in the process that uses it: a prefork child must not inherit a loop or a socket.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from redis import Redis

from tasks.connections import connect

T = TypeVar("T")


class ProcessRuntime:
    """Implements tasks.runtime.Runtime."""

    def __init__(self, worker: str, state_url: str) -> None:
        self.worker = worker
        self.state: Redis = connect(state_url)  # connects on first use, and again after a fork
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_pid = 0

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
