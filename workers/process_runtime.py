"""What one worker process holds for its tasks: Redis clients, one asyncio loop that they share, and its API clients.

All is built on first use, in the process that uses it: a prefork child must not inherit a loop or a socket.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from redis import Redis

from config.profiles import Profiles
from tasks.apis.call import Ask
from tasks.jobs.core import JobCore
from tasks.jobs.run import Runner
from tasks.registry import Worker

if TYPE_CHECKING:
    from workers.api_calls import ApiCalls

T = TypeVar("T")


class ProcessRuntime:
    """Implements tasks.runtime.Runtime."""

    def __init__(self, worker: Worker, core: JobCore, profiles: Profiles | None = None) -> None:
        self.worker = worker.name
        self.state: Redis = core.state  # connects on first use, and again after a fork
        self._core = core
        self._worker = worker
        self._profiles = profiles or Profiles()
        self._runner: Runner | None = None
        self._calls: ApiCalls | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_pid = 0

    @property
    def runner(self) -> Runner:
        if self._runner is None:
            self._runner = self._core.runner(self._worker)
        return self._runner

    @property
    def ask(self) -> Ask:
        """Calls of outside APIs; to be awaited on the loop of `run_async`."""
        with self._lock:
            if self._calls is None:
                from workers.api_calls import ApiCalls  # the SDK takes a second to import, and few processes need it

                self._calls = ApiCalls(self._profiles, self._core.settings.redis_url)
            return self._calls

    def run_async(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """End connections and loop; a worker that ends lets the system do that."""
        if self._calls:
            self.run_async(self._calls.close(), 5)
        if self._loop and self._loop_pid == os.getpid():
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop_pid != os.getpid():
                self._loop, self._loop_pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=_run, args=(self._loop,), name="asyncio", daemon=True).start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
