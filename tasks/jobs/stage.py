"""Stages: the steps of an item's way through a job. A stage is an object with its pool, its limits and its code.

`Kind.stages` builds the stages of one job, so a stage holds the job's spec. A stage runs in one of three ways, each a
base class: `BatchStage` computes batches, `AskStage` awaits one coroutine per item, `StreamStage` feeds an engine that
takes items whenever it has room. Stages know nothing of queues, leases or the cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from config.pools import StagePool
from tasks.jobs.model import Result, StageLimits, StageMode, StageRecord
from tasks.providers.call import Ask
from tasks.runtime import Resource, Runtime

T = TypeVar("T")
ItemT = TypeVar("ItemT")
_Item = TypeVar("_Item", contravariant=True)

Key = Mapping[str, Any]
"""Everything that determines an answer, as JSON values: the input of its cache hash."""

_NOTHING: Any = object()


@dataclass(slots=True)
class Work(Generic[ItemT]):
    """One item of a batch: its parsed payload, and the outcome of the stage before."""

    index: int
    """Index of the item; of its trial, where the job runs each item several times."""
    item: ItemT
    carry: dict[str, Any] | None = None
    """Outcome of the stage before, as JSON; None at the first stage."""
    attempts: int = 0
    """Times the item was tried before."""
    spec: Any = None
    """Spec of the item's own job: a batch may hold items of several jobs."""
    trial: int = 0
    """Number of this trial, where the job runs each item several times."""
    _prepared: Any = field(default=_NOTHING, init=False, repr=False, compare=False)

    def prepared(self, prepare: Callable[[ItemT], T]) -> T:
        """Return `prepare(item)`, computed once per item: `key`, `ask` and `stored_key` of a stage share it."""
        if self._prepared is _NOTHING:
            self._prepared = prepare(self.item)
        return cast(T, self._prepared)


@dataclass(frozen=True, slots=True)
class Context:
    """Access to the worker process while a batch runs."""

    worker: str
    is_cancelled: Callable[[], bool]
    """Whether all jobs of the batch have ended. Cheap enough to be called several times a second."""
    runtime: Runtime

    def get(self, resource: Resource[T]) -> T:
        """Return the process's instance of this resource; raise the resource's own error if the process has none."""
        return self.runtime.get(resource)


class Feed(Protocol[ItemT]):
    """Source of items, and sink of results, for an engine that takes items as it has room."""

    def more(self, room: int) -> Sequence[Work[ItemT]]:
        """Return up to `room` items; none if there are none now. They may be of several jobs with one batch key."""

    def done(self, work: Work[ItemT], result: Result) -> None:
        """Record the result of an item that `more` returned."""

    def keep_file(self, work: Work[ItemT], body: bytes, suffix: str) -> str | None:
        """Store binary data with the item's job and return its name; None where not every host could read it."""

    def is_cancelled(self) -> bool:
        """Whether all jobs of the items at hand have ended."""


class Stage(ABC, Generic[ItemT]):
    """One step of an item's way. By default it is the last one, and its answers are not cached."""

    mode: ClassVar[StageMode]

    def __init__(
        self,
        name: str,
        pool: StagePool,
        limits: StageLimits | None = None,
        *,
        grouped: bool = False,
        answers: str = "",
    ) -> None:
        """`answers`: the job kind under whose name answers are cached; by default the job's own kind."""
        self.record = StageRecord(name, pool, grouped, self.mode, limits or StageLimits())
        self.answers = answers

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def pool(self) -> StagePool:
        return self.record.pool

    @property
    def grouped(self) -> bool:
        return self.record.grouped

    @property
    def limits(self) -> StageLimits:
        return self.record.limits

    def key(self, work: Work[ItemT]) -> Key | None:  # noqa: ARG002  # for stages that cache
        """Return everything that determines the answer; None if computing it is cheaper than looking it up."""
        return None

    def stored_key(self, work: Work[ItemT], result: Result, key: Key) -> Key | None:  # noqa: ARG002  # see below
        """Return the key under which a good result is cached; None to cache nothing.

        `key` is the item's own key, and the default. It differs where a fallback model or a newer policy answered.
        """
        return key

    def advance(self, work: Work[ItemT], result: Result) -> Result:  # noqa: ARG002  # for stages with a successor
        """Join a result with the outcome of the stage before, and name the `next` stage.

        Called for cached results, which know nothing of the item, and for failures too.
        """
        return result


class BatchStage(Stage[ItemT]):
    """A stage that computes one batch after the other."""

    mode = "batch"

    @abstractmethod
    def run(self, context: Context, batch: Sequence[Work[ItemT]]) -> Sequence[Result]:
        """Return one result per item, in order. Raise Retryable or Permanent if the whole batch failed.

        A batch of several jobs runs on the stage of its first item's job.
        """


class AskStage(Stage[ItemT]):
    """A stage whose items wait for an outside API: a whole chunk is in flight at once, each item commits as it ends."""

    mode = "ask"

    @abstractmethod
    async def ask(self, ask: Ask, work: Work[ItemT]) -> Result:
        """Return the result of one item. Calls made by `ask` are counted for the item's job. Raise what went wrong."""


class StreamStage(Stage[ItemT]):
    """A stage whose engine takes items as it has room, those of further chunks and jobs included."""

    mode = "stream"

    @abstractmethod
    def stream(self, context: Context, feed: Feed[ItemT]) -> None:
        """Run until the feed has no more items and all are done. An exception fails the items that are not done."""
