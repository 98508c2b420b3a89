"""Entry: an item of a running chunk, with the immutable part of its job and the hash of its request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tasks.jobs.kind import Kind, answer_namespace, full_batch_key
from tasks.jobs.model import Result, StageRecord
from tasks.jobs.stage import Key, Stage, Work
from tasks.jobs.state.cache import request_hash
from tasks.jobs.state.ledger import Chunk
from tasks.jobs.state.payloads import Recipe
from tasks.jobs.state.trials import key_of


@dataclass(frozen=True)
class JobPlan:
    """The immutable part of a job (recipe, kind, parsed spec, stages), cached per process."""

    recipe: Recipe
    kind: Kind[Any, Any]
    spec: Any
    stages: Mapping[str, Stage[Any]]

    @classmethod
    def of(cls, recipe: Recipe, kind: Kind[Any, Any]) -> "JobPlan":
        spec = kind.spec_model.model_validate(recipe.spec)
        return cls(recipe, kind, spec, {stage.name: stage for stage in kind.stages(spec)})

    @cached_property
    def batch_key(self) -> str:
        """Equal for jobs whose items may share a batch."""
        return full_batch_key(self.kind, self.spec)

    @cached_property
    def labels(self) -> Mapping[str, str]:
        return self.kind.labels(self.spec)

    def group_stage_after(self, stage: str) -> str:
        return group_stage_after([each.record for each in self.stages.values()], stage)


@dataclass(slots=True)
class Entry:
    chunk: Chunk
    payload: dict[str, Any]
    work: Work[Any]
    request: str
    """Hash of the complete input that determines the answer; empty if the answer is not cached."""
    key: Key | None
    """The stage's key of the item; None if the answer is not cached."""
    plan: JobPlan
    stage: Stage[Any]

    @classmethod
    def of(cls, chunk: Chunk, payload: dict[str, Any], work: Work[Any], plan: JobPlan) -> "Entry":
        stage = plan.stages[chunk.stage]
        key = stage.key(work) if plan.recipe.cache != "off" else None
        entry = cls(chunk, payload, work, "", key, plan, stage)
        if key is not None:
            entry.request = entry.request_of(key)
        return entry

    @property
    def name(self) -> str:
        """Deduplication key: items of a batch with equal names are computed once."""
        return self.request or f"{self.chunk.id}:{self.work.index}"

    @property
    def recipe(self) -> Recipe:
        return self.plan.recipe

    @property
    def answers(self) -> str:
        """The kind under whose name the answer is cached."""
        return answer_namespace(self.plan.kind, self.stage)

    def trial_key(self, key: Key) -> Key:
        """Return the key with the number of the trial: the answers of trials are cached separately."""
        return key_of(key, self.work.trial)

    def request_of(self, key: Key) -> str:
        """Return the cache hash of a key."""
        return request_hash(self.answers, self.stage.name, self.trial_key(key))


@dataclass(frozen=True, slots=True)
class Computed:
    result: Result
    seconds: float


def group_stage_after(stages: Sequence[StageRecord], stage: str) -> str:
    """Return the grouped stage after this stage; empty if no later stage is grouped."""
    names = [each.name for each in stages]
    later = stages[names.index(stage) + 1 :] if stage in names else ()
    return next((each.name for each in later if each.grouped), "")
