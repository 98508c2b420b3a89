"""Job kind `score`: models and policies on devices, rules on CPU workers, a judge on API workers, then the rewards of
groups. A job has only the stages that its spec needs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from tasks.episodes.served_policy import ServedPolicy
from tasks.errors import InvalidRequest
from tasks.inference.kind import installed_models
from tasks.inference.models import Models
from tasks.jobs.kind import Installation, Kind
from tasks.jobs.model import Result
from tasks.jobs.stage import Stage, Work
from tasks.judging.kind import Judge
from tasks.scoring.lengths import Tokenizers
from tasks.scoring.model import RewardJudge, ScoreItem, ScoreSpec
from tasks.scoring.policy import policy
from tasks.scoring.reward import join_judge
from tasks.scoring.stages import REWARD, EpisodeStage, MeasureStage, RewardStage, RuleStage, Served, TrialsStage


class Score(Kind[ScoreSpec, ScoreItem]):
    name = "score"
    spec_model = ScoreSpec
    item_model = ScoreItem

    def __init__(
        self,
        judge: Judge,
        tokenizers: Tokenizers,
        models: Models,
        served: Served = lambda: None,
        episode_s: float = 1800.0,
    ) -> None:
        """`served`: returns the policy that is served now, if known; `episode_s`: timeout of an episode in seconds."""
        self._judge = judge
        self._tokenizers = tokenizers
        self._models = models
        self._served = served
        self._episode_s = episode_s

    @classmethod
    def create(cls, installation: Installation) -> Self:
        settings = installation.settings
        return cls(
            installation.shared(Judge.create),
            Tokenizers(settings.tokenizers_dir),
            installation.shared(installed_models),
            ServedPolicy(installation.registry),
            settings.episode_s,
        )

    def check(self, spec: ScoreSpec) -> None:
        """Raise InvalidRequest if a model, the judge or the tokenizer is missing; scorers were already looked up."""
        for at, choice in enumerate(spec.scorers):
            if choice in spec.model_scorers:
                self._models.local(str(choice.options["model"]), f"spec.scorers[{at}].options.model")
        if spec.tokenizer:
            self._tokenizers.check(spec.tokenizer)
        if spec.judge:
            try:
                self._judge.check(spec.judge)
            except InvalidRequest as error:
                raise InvalidRequest(str(error), field=error.field.replace("spec.", "spec.judge.", 1)) from error

    def stages(self, spec: ScoreSpec) -> Sequence[Stage[ScoreItem]]:
        if spec.policy:
            return [EpisodeStage(spec, self._served, self._episode_s), TrialsStage(spec, self._tokenizers)]
        stages: list[Stage[ScoreItem]] = [RuleStage(spec, self._tokenizers)]
        if spec.model_scorers:
            stages.insert(0, MeasureStage(spec, self._models))
        if spec.judge:
            stages.append(self._judge_stage(spec, spec.judge))
        if spec.is_grouped:
            stages.append(RewardStage(spec))
        return stages

    def _judge_stage(self, spec: ScoreSpec, judge: RewardJudge) -> Stage[ScoreItem]:
        """Return the stage of the kind `judge`, with its cache. Its verdict is joined with the item's base score."""

        def join(work: Work[ScoreItem], result: Result) -> Result:
            parts, reward = join_judge(spec, work.carry, result)
            score = None if result.error else reward
            return replace(result, score=score, parts=parts, next=REWARD if spec.is_grouped else "")

        return self._judge.stage(judge, lambda item: item.for_judge, join)

    def trials(self, spec: ScoreSpec) -> int:
        return spec.trials

    def labels(self, spec: ScoreSpec) -> Mapping[str, str]:
        return self._judge.labels(spec.judge) if spec.judge else {}

    def batch_key(self, spec: ScoreSpec) -> str:
        """Return a common key for jobs with a policy: their episodes share the servers."""
        return policy.name if spec.policy else super().batch_key(spec)
