"""What a kind of job brings: how to read its items, what determines an answer, how to run a batch.

A kind is a small room of its own (`tasks/simulated`, ...). It knows nothing of queues, leases or the cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from tasks.apis.call import Ask
from tasks.benchmarks.model import Bench
from tasks.episodes.model import Episodes
from tasks.errors import UnknownKind
from tasks.inference.engine import Engine
from tasks.jobs.model import Result, Stage

SpecT = TypeVar("SpecT", bound=BaseModel)
ItemT = TypeVar("ItemT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Work(Generic[ItemT]):
    """One item of a batch: its payload, and what the stage before handed on."""

    index: int
    item: ItemT
    carry: dict[str, Any] | None = None
    attempts: int = 0
    spec: Any = None
    """Of its job; where a batch is of several, each has its own."""
    trial: int = 0
    """Which time this is, of an item that is run several times; then `index` is of the trial, not of the item."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a batch may ask while it runs."""

    stage: str
    worker: str
    is_cancelled: Callable[[], bool]
    """Cheap enough to ask several times a second: a long batch stops when all its jobs are over."""
    engine: Callable[[], Engine]
    """The models that this process holds; made when first asked for. Raises CannotAnswer where it holds none."""
    episodes: Callable[[], Episodes]
    """Its policy servers and simulators, likewise."""
    bench: Callable[[], Bench]
    """What it measures the system with, likewise."""


class Feed(Protocol[ItemT]):
    """The items of an engine that takes them as it has room."""

    def more(self, room: int) -> Sequence[Work[ItemT]]:
        """So many at most; none when there are none now. They may be of several jobs that agree in the batch key."""

    def done(self, work: Work[ItemT], result: Result) -> None:
        """What came of one that `more` gave."""

    def keep_file(self, work: Work[ItemT], body: bytes, suffix: str) -> str | None:
        """Keep what is no JSON with the item's job: its name there; None where not every host could read it."""

    def is_cancelled(self) -> bool:
        """Whether nobody waits for any of it any more."""


class Kind(Protocol[SpecT, ItemT]):
    name: str
    spec_model: type[SpecT]
    item_model: type[ItemT]

    def check(self, spec: SpecT) -> None:
        """Whether this installation has what the spec names. Raises InvalidRequest. Asked when a job is submitted."""

    def stages(self, spec: SpecT) -> Sequence[Stage]:
        """The way of an item, in order. Stages may be skipped, never repeated."""

    def key(self, spec: SpecT, stage: str, item: ItemT) -> dict[str, Any] | None:
        """All that determines this stage's answer; None when computing it is cheaper than looking it up."""

    def labels(self, spec: SpecT) -> Mapping[str, str]:
        """What cached answers can be purged by: model, rubric, profile."""

    def batch_key(self, spec: SpecT) -> str:
        """Items of one stage whose jobs agree in this may share a batch, which runs with the first one's spec."""

    def advance(self, spec: SpecT, stage: str, work: Work[ItemT], result: Result) -> Result:
        """What becomes of an item: this stage's result joined with what came before, and, for a good one, the stage
        that is `next`. Asked for cached results too, which know nothing of the item; and for failures."""


@runtime_checkable
class ChoosingKind(Protocol):
    """A kind that takes only some of the items it is sent, or changes them on the way in."""

    def choose(self, spec: Any, items: Iterator[dict[str, Any]], slots: int) -> Iterator[dict[str, Any]]:
        """The items of the job, in order; `slots` is how many device workers there are."""


@runtime_checkable
class TrialKind(Protocol):
    """A kind that runs an item several times, and makes one outcome of it in a grouped stage."""

    def trials(self, spec: Any) -> int:
        """How often. Where it is more than once, a group is the trials of one item, whatever group that names, and its
        stage gives all of them the same status: they are counted as one."""


@runtime_checkable
class EngineKind(Kind[SpecT, ItemT], Protocol[SpecT, ItemT]):
    """A kind with stages that compute: one engine batch after the other."""

    def run(self, context: Context, spec: SpecT, batch: Sequence[Work[ItemT]]) -> Sequence[Result]:
        """One result for each item, in order. Raises Retryable or Permanent when the whole batch failed."""


@runtime_checkable
class StreamKind(Kind[SpecT, ItemT], Protocol[SpecT, ItemT]):
    """A kind with stages whose engine takes items as it has room."""

    def stream(self, context: Context, feed: Feed[ItemT]) -> None:
        """Run until there is no more and all is done. Raises what went wrong with all that is not."""


@runtime_checkable
class RekeyingKind(Protocol):
    """A kind with stages where somebody else may answer than was asked (`Stage.rekeys`)."""

    def stored_key(self, spec: Any, stage: str, item: Any, result: Result) -> dict[str, Any] | None:
        """What a good result is cached under: its `key`, or another when another answered; None for nothing."""


@runtime_checkable
class AsyncKind(Kind[SpecT, ItemT], Protocol[SpecT, ItemT]):
    """A kind with stages whose items ask an API."""

    async def run_one(self, ask: Ask, spec: SpecT, work: Work[ItemT]) -> Result:
        """The result of one item; whose calls they are is known to `ask`. Raises what went wrong with it."""


def answers_of(kind: Kind[Any, Any], stage: Stage) -> str:
    """The kind under whose name the stage's answers are cached."""
    return stage.answers or kind.name


class Kinds:
    """The kinds there are, by name."""

    def __init__(self, *kinds: Kind[Any, Any]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}

    def __getitem__(self, name: str) -> Kind[Any, Any]:
        try:
            return self._kinds[name]
        except KeyError:
            known = ", ".join(sorted(self._kinds))
            raise UnknownKind(f"There is no job kind {name!r}; kinds are {known}.", field="kind") from None
