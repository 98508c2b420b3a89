"""What a kind of job brings: how to read its items, what determines an answer, how to run a batch.

A kind is a small room of its own (`tasks/simulated`, ...). It knows nothing of queues, leases or the cache.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from config.queues import Priority
from tasks.apis.call import Ask
from tasks.errors import UnknownKind
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


@dataclass(frozen=True, slots=True)
class Context:
    """What a batch may ask while it runs."""

    stage: str
    worker: str
    is_cancelled: Callable[[], bool]
    """Cheap enough to ask several times a second: a long batch stops when all its jobs are over."""


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

    def batch_items(self, spec: SpecT) -> int:
        """How many items an engine batch holds at most."""

    def cost_s(self, spec: SpecT) -> float:
        """A first guess of the seconds one item takes; measured from then on."""

    def timeout_s(self, spec: SpecT) -> float:
        """How long one batch may take before its worker counts as hung."""

    def onward(self, spec: SpecT, stage: str, result: Result) -> str:
        """The stage a good result goes on to; empty when it is final. Asked for cached results too."""


@runtime_checkable
class EngineKind(Kind[SpecT, ItemT], Protocol[SpecT, ItemT]):
    """A kind that computes: one engine batch after the other."""

    def run(self, context: Context, spec: SpecT, batch: Sequence[Work[ItemT]]) -> Sequence[Result]:
        """One result for each item, in order. Raises Retryable or Permanent when the whole batch failed."""


@runtime_checkable
class AsyncKind(Kind[SpecT, ItemT], Protocol[SpecT, ItemT]):
    """A kind whose items ask an API: all of a chunk are in flight together, and each is committed when it is there."""

    def stored_key(self, spec: SpecT, item: ItemT, result: Result) -> dict[str, Any] | None:
        """What a good result is cached under: its `key`, or another when a fallback answered; None for nothing."""

    async def run_one(self, ask: Ask, spec: SpecT, work: Work[ItemT], job: str, priority: Priority) -> Result:
        """The result of one item. Raises what went wrong with it."""


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
