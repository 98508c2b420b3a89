"""Interface between a task and the worker process that runs it: named resources, and the process's asyncio loop.

`workers` implements it; `tasks` never imports `workers`. A resource (a model engine, policy servers, API calls) is
declared as a `Resource` object by the package that uses it, so this module and the job core know none of them.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from redis import Redis

from tasks.errors import AssayError, Permanent

T = TypeVar("T")


class Resource(Generic[T]):
    """Typed key under which a worker process offers an object of type `T`; equal only to itself."""

    def __init__(self, name: str, missing: Callable[[str], AssayError] | None = None) -> None:
        """`missing` builds the error, from the worker's name, for a process without this resource."""
        self.name = name
        self._missing = missing

    def missing_on(self, worker: str) -> AssayError:
        return self._missing(worker) if self._missing else Permanent(f"{worker} has no {self.name}.")


class Runtime(Protocol):
    @property
    def worker(self) -> str:
        """The name of this worker, as in the registry."""

    @property
    def state(self) -> Redis:
        """The client of the state Redis."""

    def find(self, resource: Resource[T]) -> T | None:
        """Return the process's instance of this resource, created on first use; None if the process has none."""

    def get(self, resource: Resource[T]) -> T:
        """Return the process's instance of this resource; raise the resource's own error if the process has none."""

    def run_async(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run on the asyncio loop of the process and wait for the result; raise TimeoutError past the deadline."""

    def run_each(
        self, work: Sequence[Coroutine[Any, Any, T]], is_cancelled: Callable[[], bool]
    ) -> Iterator[list[tuple[int, T | BaseException, float]]]:
        """Run coroutines concurrently on the loop; yield pages of (index, result or exception, seconds) as they end.

        Each index is yielded once. When `is_cancelled` returns true, running coroutines are cancelled.
        """
