"""What one worker process holds for its tasks: Redis clients, and one asyncio loop that they share.

All is built on first use, in the process that uses it: a prefork child must not inherit a loop or a socket.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

from redis import Redis

from tasks.jobs.core import JobCore
from tasks.jobs.run import Runner
from tasks.registry import Worker
from workers.loop import Loop

T = TypeVar("T")


class ProcessRuntime:
    """Implements tasks.runtime.Runtime."""

    def __init__(self, worker: Worker, core: JobCore) -> None:
        self.worker = worker.name
        self.state: Redis = core.state  # connects on first use, and again after a fork
        self._core = core
        self._worker = worker
        self._runner: Runner | None = None
        self._loop = Loop()

    @property
    def runner(self) -> Runner:
        if self._runner is None:
            self._runner = self._core.runner(self._worker)
        return self._runner

    def run_async(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return self._loop.run(work, timeout_s)
