"""What one worker process holds for its tasks: Redis clients, one asyncio loop that they share, and its API clients.

All is built on first use, in the process that uses it: a prefork child must not inherit a loop or a socket.
"""

import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redis import Redis

from config.profiles import Profiles
from tasks.apis.call import Ask
from tasks.jobs.core import JobCore
from tasks.jobs.run import Runner
from tasks.registry import Worker
from workers.loop import Loop

if TYPE_CHECKING:
    from workers.api_calls import ApiCalls

T = TypeVar("T")


class ProcessRuntime:
    """Implements tasks.runtime.Runtime and Calls."""

    def __init__(self, worker: Worker, core: JobCore, profiles: Profiles | None = None) -> None:
        self.worker = worker.name
        self.state: Redis = core.state  # connects on first use, and again after a fork
        self._core = core
        self._worker = worker
        self._profiles = profiles or Profiles()
        self._runner: Runner | None = None
        self._calls: ApiCalls | None = None
        self._lock = threading.Lock()
        self._loop = Loop()

    @property
    def runner(self) -> Runner:
        if self._runner is None:
            self._runner = self._core.runner(self._worker, self)
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
        return self._loop.run(work, timeout_s)

    def run_each(
        self, work: Sequence[Coroutine[Any, Any, T]], is_cancelled: Callable[[], bool]
    ) -> Iterator[list[tuple[int, T | BaseException, float]]]:
        return self._loop.run_each(work, is_cancelled)

    def close(self) -> None:
        """End connections and loop; a worker that ends lets the system do that."""
        if self._calls:
            self.run_async(self._calls.close(), 5)
        self._loop.stop()
