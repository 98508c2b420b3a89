"""Job kind `rollout`: generates samples on devices, rewards them with the stages of a score job, and puts them into
the sample queue.

Rollouts are created by `Rollouts`, not by a plain submission.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from tasks.errors import InvalidRequest
from tasks.inference.engine import ModelRef
from tasks.inference.kind import installed_models
from tasks.inference.models import Models
from tasks.jobs.kind import Installation, Kind
from tasks.jobs.stage import Stage
from tasks.rollouts.model import RolloutItem, RolloutSpec
from tasks.rollouts.stages import GenerateStage, Pipeline, SimulatedRewardStage, for_groups
from tasks.rollouts.weight_versions import Versions
from tasks.scoring.kind import Score


class Rollout(Kind[RolloutSpec, RolloutItem]):
    name = "rollout"
    spec_model = RolloutSpec
    item_model = RolloutItem
    script_hooks = Path(__file__).parent / "scripts" / "include" / "rollout_hooks.lua"

    def __init__(self, score: Score, models: Models, versions: Versions) -> None:
        self._score = score
        self._models = models
        self._versions = versions

    @classmethod
    def create(cls, installation: Installation) -> Self:
        return cls(
            installation.shared(Score.create), installation.shared(installed_models), Versions(installation.state)
        )

    def check(self, spec: RolloutSpec) -> None:
        if not spec.rollout:
            raise InvalidRequest("kind: create a rollout by POST /v1/rollouts.", field="kind")
        if spec.model:
            self.model(spec)
        if spec.reward and spec.reward.policy:
            raise InvalidRequest(
                "spec.reward.scorers: a policy's episodes cannot reward samples.", "spec.reward.scorers"
            )
        if spec.reward:
            try:
                self._score.check(spec.reward)
            except InvalidRequest as error:
                raise InvalidRequest(str(error), field=error.field.replace("spec.", "spec.reward.", 1)) from error

    def model(self, spec: RolloutSpec) -> ModelRef:
        """Return a reference to the rollout's private copy of the model, because its weights change."""
        return replace(self._models.find(spec.inference()), copy=spec.rollout)

    def stages(self, spec: RolloutSpec) -> Sequence[Stage[RolloutItem]]:
        """Return the stages: generation, then each stage of the score job that processes samples individually."""
        rewards = self._score.stages(spec.reward) if spec.reward else ()
        pipeline = Pipeline(spec, [stage for stage in rewards if not stage.grouped])
        first = GenerateStage(pipeline, self.model, self._versions)
        if spec.simulated and spec.simulated.reward_s:
            return [first, SimulatedRewardStage(pipeline, spec.simulated)]
        return [first, *(for_groups(pipeline, stage) for stage in pipeline.stages)]

    def labels(self, spec: RolloutSpec) -> Mapping[str, str]:
        return {"model": spec.model}

    def batch_key(self, spec: RolloutSpec) -> str:
        """Return a key unique to the rollout: rows of other jobs must not be generated with its weights."""
        return str(self.model(spec)) if spec.model else spec.rollout
