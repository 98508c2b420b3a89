"""Job kind `score`: one stage on CPU workers."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tasks.jobs.kinds import Context, Work
from tasks.jobs.model import ItemError, Result, Stage
from tasks.scoring import registry
from tasks.scoring.combination import Prepared, prepare, score_item
from tasks.scoring.isolated import PATIENCE
from tasks.scoring.isolation import GRACE_S, START_S, TRIES, isolation
from tasks.scoring.model import ScoreItem, ScoreSpec

#: Items of a batch. Isolated scorers may take seconds each, and their batch has a deadline.
BATCH, ISOLATED_BATCH = 200, 20
#: Seconds a scorer may take for one item before its worker counts as hung; none of ours comes near.
MOST_S = 10.0


class Score:
    name = "score"
    spec_model = ScoreSpec
    item_model = ScoreItem

    def check(self, spec: ScoreSpec) -> None:
        """Its model has found the scorers already."""

    def stages(self, spec: ScoreSpec) -> Sequence[Stage]:  # noqa: ARG002  # the same for all
        return [Stage("score", "cpu")]

    def key(self, spec: ScoreSpec, stage: str, item: ScoreItem) -> dict[str, Any] | None:  # noqa: ARG002  # one stage
        """None for rules: hashing, claiming and storing cost 0.3 ms an item, a rule 0.1 ms, `math_equal` 2 to 3 ms."""
        versions = {choice.name: registry.find(choice.name) for choice in spec.scorers}
        if not any(each.cacheable for each in versions.values()):
            return None
        return {
            "spec": spec.model_dump(mode="json"),
            "versions": {name: each.version for name, each in versions.items()},
            "item": item.model_dump(mode="json", exclude={"id", "group_id"}),
        }

    def labels(self, spec: ScoreSpec) -> Mapping[str, str]:  # noqa: ARG002  # no model, rubric or profile
        return {}

    def batch_key(self, spec: ScoreSpec) -> str:
        return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()

    def batch_items(self, spec: ScoreSpec) -> int:
        return ISOLATED_BATCH if _isolated_s(spec) else BATCH

    def cost_s(self, spec: ScoreSpec) -> float:
        return sum(registry.find(choice.name).cost_s for choice in spec.scorers)

    def timeout_s(self, spec: ScoreSpec) -> float:
        """Isolated scorers are ended one by one long before; this is for what nobody foresaw."""
        each_s = _isolated_s(spec) or len(spec.scorers) * MOST_S
        return START_S + self.batch_items(spec) * each_s

    def onward(self, spec: ScoreSpec, stage: str, result: Result) -> str:  # noqa: ARG002  # one stage
        return ""

    def run(self, context: Context, spec: ScoreSpec, batch: Sequence[Work[ScoreItem]]) -> Sequence[Result]:
        prepared = _prepared(spec.model_dump_json())
        return [
            _STOPPED if context.is_cancelled() else score_item(spec, prepared, work.item, isolation()) for work in batch
        ]


_STOPPED = Result(error=ItemError("cancelled", "The job was over before this item was done."))


@lru_cache(maxsize=64)
def _prepared(spec: str) -> tuple[Prepared, ...]:
    """Compiled patterns and checked schemas, kept from one batch of a job to the next."""
    return prepare(ScoreSpec.model_validate_json(spec))


def _isolated_s(spec: ScoreSpec) -> float:
    """Seconds that the isolated scorers may take for one item, restarts included; 0 when there are none."""
    choices = [(registry.find(choice.name), choice.options) for choice in spec.scorers]
    limits: list[float] = [
        scorer.options.model_validate(options).timeout_s for scorer, options in choices if scorer.isolated
    ]
    return sum(TRIES * (PATIENCE * limit_s + GRACE_S) + GRACE_S for limit_s in limits)
