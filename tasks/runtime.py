"""What a task may ask of the process that runs it. `workers` implements it; `tasks` never imports `workers`."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from redis import Redis

from tasks.apis.call import Ask

if TYPE_CHECKING:  # the runner publishes through the application, whose tasks know this module
    from tasks.jobs.run import Runner

T = TypeVar("T")


class Runtime(Protocol):
    @property
    def worker(self) -> str:
        """The name of this worker, as in the registry."""

    @property
    def state(self) -> Redis:
        """The state Redis."""

    @property
    def runner(self) -> "Runner":
        """What runs chunks here."""

    @property
    def ask(self) -> Ask:
        """Calls of outside APIs; to be awaited on the process's loop."""

    def run_async(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run on the process's one asyncio loop and wait for the result; TimeoutError past the deadline."""
