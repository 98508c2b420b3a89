"""One item of the chunks at hand, with what is known of its job."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.jobs.kinds import Kind, Work
from tasks.jobs.ledger import Chunk
from tasks.jobs.model import Result, Stage
from tasks.jobs.payloads import Recipe


@dataclass(frozen=True, slots=True)
class Known:
    """A job as far as it never changes."""

    recipe: Recipe
    kind: Kind[Any, Any]
    spec: Any
    stages: Mapping[str, Stage]

    @property
    def sort(self) -> str:
        """Equal for jobs whose items may share a batch."""
        return f"{self.kind.name}|{self.kind.batch_key(self.spec)}"

    def group_stage_after(self, stage: str) -> str:
        return group_stage_after(list(self.stages.values()), stage)


@dataclass(slots=True)
class Entry:
    chunk: Chunk
    payload: dict[str, Any]
    work: Work[Any]
    request: str
    """Hash of what determines the answer; empty when it is not cached."""
    key: Mapping[str, Any] | None
    about: Known

    @property
    def name(self) -> str:
        """Equal for items of a batch that are computed once."""
        return self.request or f"{self.chunk.id}:{self.work.index}"

    @property
    def stage(self) -> Stage:
        return self.about.stages[self.chunk.stage]

    @property
    def recipe(self) -> Recipe:
        return self.about.recipe


@dataclass(frozen=True, slots=True)
class Computed:
    result: Result
    seconds: float


def group_stage_after(stages: list[Stage], stage: str) -> str:
    """The grouped stage that an item of this stage is still to reach; empty when there is none."""
    names = [each.name for each in stages]
    later = stages[names.index(stage) + 1 :] if stage in names else ()
    return next((each.name for each in later if each.grouped), "")
