"""What a task may ask of the process that runs it. `workers` implements it; `tasks` never imports `workers`."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from redis import Redis

from tasks.apis.call import Ask
from tasks.benchmarks.model import Bench
from tasks.episodes.model import Episodes
from tasks.inference.engine import Engine

if TYPE_CHECKING:  # the runner publishes through the application, whose tasks know this module
    from tasks.benchmarks.runs import Runs
    from tasks.jobs.run import Runner

T = TypeVar("T")


class Means(Protocol):
    """What a process holds to run items with."""

    @property
    def engine(self) -> Engine | None:
        """Its models; None in a process that has no device."""

    @property
    def episodes(self) -> Episodes | None:
        """Its policy servers and simulators; None in a process that has no policy server."""

    @property
    def bench(self) -> Bench | None:
        """What it measures the system with; None in a process that is not there for that."""

    @property
    def ask(self) -> Ask:
        """Calls of outside APIs, to be awaited on the process's one asyncio loop."""

    def run_each(
        self, work: Sequence[Coroutine[Any, Any, T]], is_cancelled: Callable[[], bool]
    ) -> Iterator[list[tuple[int, T | BaseException, float]]]:
        """Run all on that loop at once; give pages of (index, result or what was raised, seconds) as they come, every
        index once. When the work is no longer wanted, what is still under way is cancelled."""


class Runtime(Protocol):
    @property
    def worker(self) -> str:
        """The name of this worker, as in the registry."""

    @property
    def state(self) -> Redis:
        """The state Redis."""

    @property
    def engine(self) -> Engine | None:
        """Its models; None in a process that has no device."""

    @property
    def runner(self) -> "Runner":
        """What runs chunks here."""

    @property
    def runs(self) -> "Runs":
        """Benchmark runs, to be started."""

    def run_async(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run on the process's one asyncio loop and wait for the result; TimeoutError past the deadline."""
