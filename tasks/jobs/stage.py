"""Stages: the steps that an item passes in a job. A stage is an object with its pool, its limits and its code.

`Kind.stages` builds the stages of a job, so a stage holds the job's spec. Each execution mode has a base class:
`BatchStage` computes batches, `AskStage` awaits a coroutine per item, `StreamStage` feeds an engine with continuous
batching, which admits items as rows become free. Stages do not depend on queues, leases or the cache.
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
"""Complete input that determines an answer, as JSON values: the input of its cache hash."""

_NOTHING: Any = object()


@dataclass(slots=True)
class Work(Generic[ItemT]):
    """An item of a batch: its parsed payload, and the outcome of the previous stage."""

    index: int
    """Index of the item; if the job runs each item several times, the index of its trial."""
    item: ItemT
    carry: dict[str, Any] | None = None
    """Outcome of the previous stage, as JSON; None at the first stage."""
    attempts: int = 0
    """Number of earlier attempts."""
    spec: Any = None
    """Spec of the item's own job: a batch may hold items of several jobs."""
    trial: int = 0
    """Number of this trial, if the job runs each item several times."""
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
    """Returns whether every job of the batch has ended. Cheap enough to be called several times per second."""
    runtime: Runtime

    def get(self, resource: Resource[T]) -> T:
        """Return the process's instance of this resource; raise the resource's own error if the process has none."""
        return self.runtime.get(resource)


class Feed(Protocol[ItemT]):
    """Source of items, and sink of results, for an engine with continuous batching."""

    def more(self, room: int) -> Sequence[Work[ItemT]]:
        """Return up to `room` items; none if no items are available now. They may belong to several jobs with one batch
        key.

        To be called at every step of the engine, with 0 while it has no room: results that are due are committed then.
        """

    def done(self, work: Work[ItemT], result: Result) -> None:
        """Record the result of an item that `more` returned."""

    def keep_file(self, work: Work[ItemT], body: bytes, suffix: str) -> str | None:
        """Store a file with the item's job and return its name; None if the storage is not readable from every host."""

    def is_cancelled(self) -> bool:
        """Return whether every job of the running items has ended."""


class Stage(ABC, Generic[ItemT]):
    """A step that items pass. By default it is the last stage, and its answers are not cached."""

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
        """Return the complete input that determines the answer; None if computing it is cheaper than a lookup."""
        return None

    def stored_key(self, work: Work[ItemT], result: Result, key: Key) -> Key | None:  # noqa: ARG002  # see below
        """Return the key under which a successful result is cached; None to skip the cache.

        `key` is the item's own key, and the default. The stored key differs if a fallback model or a newer policy
        answered.
        """
        return key

    def advance(self, work: Work[ItemT], result: Result) -> Result:  # noqa: ARG002  # for stages with a successor
        """Merge a result with the outcome of the previous stage, and set the `next` stage.

        Called for failures too, and for cached results, which contain no data of the item.
        """
        return result


class BatchStage(Stage[ItemT]):
    """A stage that computes its batches sequentially."""

    mode = "batch"

    @abstractmethod
    def run(self, context: Context, batch: Sequence[Work[ItemT]]) -> Sequence[Result]:
        """Return a result per item, in order. Raise Retryable or Permanent if the whole batch failed.

        A batch with items of several jobs runs on the stage of its first item's job.
        """


class AskStage(Stage[ItemT]):
    """A stage whose items call an outside API: every item of a chunk is in flight at once, and commits as it ends."""

    mode = "ask"

    @abstractmethod
    async def ask(self, ask: Ask, work: Work[ItemT]) -> Result:
        """Return the result of an item. Calls made by `ask` are counted for the item's job. A raised exception fails
        the item."""


class StreamStage(Stage[ItemT]):
    """A stage on an engine with continuous batching, which admits items of further chunks and jobs while it runs."""

    mode = "stream"

    @abstractmethod
    def stream(self, context: Context, feed: Feed[ItemT]) -> None:
        """Run until the feed has no more items and every item is done. An exception fails the unfinished items."""
