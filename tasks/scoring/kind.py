"""Job kind `score`: models and policies on devices, rules on CPU workers, a judge on API workers, then what each group
adds. Every job has the stages that its spec needs."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tasks.apis.call import Ask
from tasks.errors import InvalidRequest
from tasks.inference.models import Models, identity
from tasks.jobs.kinds import Context, Feed, Work
from tasks.jobs.model import STOPPED, Result, Stage
from tasks.judging.kind import Judge, judge_stage
from tasks.scoring import registry
from tasks.scoring.combination import Prepared, prepare, score_item
from tasks.scoring.isolated import PATIENCE
from tasks.scoring.isolation import GRACE_S, START_S, TRIES, isolation
from tasks.scoring.lengths import Tokenizers
from tasks.scoring.measuring import measure_items
from tasks.scoring.model import RewardJudge, ScoreItem, ScoreSpec
from tasks.scoring.policy import episode_of, gather, key_of, play, policy
from tasks.scoring.reward import begin, finish_groups, is_judged, join_judge
from tasks.scoring.scorer import Scorer

EPISODE, MEASURE, SCORE, JUDGE, REWARD = "episode", "measure", "score", "judge", "reward"

#: Items of a batch. Isolated scorers may take seconds each, and their batch has a deadline.
BATCH, ISOLATED_BATCH = 200, 20
#: Seconds a scorer may take for one item before its worker counts as hung; none of ours comes near.
MOST_S = 10.0
#: Seconds that all of an item takes beside its scorers: penalties, or its share of a group.
COST_S = 0.0001
#: Items of a batch that models are asked about, of a chunk at least, and the seconds that it may take.
MEASURE_BATCH, MEASURE_LEAST, MEASURE_S = 256, 32, 600.0
#: Episodes that a worker takes at a time: few, so that towards the end none waits behind others while another server is
#: idle. And how many episodes' time one may take before its worker counts as hung: it may have to wait for another, and
#: for its server.
EPISODE_BATCH, EPISODE_PATIENCE = 2, 4


class Score:
    name = "score"
    spec_model = ScoreSpec
    item_model = ScoreItem

    def __init__(
        self, judge: Judge, tokenizers: Tokenizers, models: Models,
        served: Callable[[], Mapping[str, str] | None] = lambda: None, episode_s: float = 1800.0,
    ) -> None:  # fmt: skip
        """`served`: the policy that is served now, if that is known; `episode_s`: what an episode may take."""
        self._judge = judge
        self._tokenizers = tokenizers
        self._models = models
        self._served = served
        self._episode_s = episode_s

    def check(self, spec: ScoreSpec) -> None:
        """Whether this installation has its models, its judge and its tokenizer; the scorers were found already."""
        for at, choice in enumerate(spec.scorers):
            if choice in spec.measures:
                self._models.local(str(choice.options["model"]), f"spec.scorers[{at}].options.model")
        if spec.tokenizer:
            self._tokenizers.check(spec.tokenizer)
        if spec.judge:
            try:
                self._judge.check(spec.judge)
            except InvalidRequest as error:
                raise InvalidRequest(str(error), field=error.field.replace("spec.", "spec.judge.", 1)) from error

    def stages(self, spec: ScoreSpec) -> Sequence[Stage]:
        """Isolated scorers are ended one by one long before the batch's time; that is for what nobody foresaw."""
        isolated_s = _isolated_s(spec)
        size = ISOLATED_BATCH if isolated_s else BATCH
        timeout_s = START_S + size * (isolated_s or max(1, len(spec.scorers)) * MOST_S)
        rules = [found for choice in spec.scorers if isinstance(found := registry.find(choice.name), Scorer)]
        cost_s = COST_S + sum(rule.cost_s for rule in rules)
        stages = []
        if spec.policy:
            options = spec.policy_options
            stages.append(
                Stage(EPISODE, "policy", streams=True, batch_items=EPISODE_BATCH, cost_s=policy.cost_s,
                      timeout_s=EPISODE_PATIENCE * self._episode_s, most_out=options.in_flight, rekeys=True)
            )  # fmt: skip
        if spec.measures:
            measure_s = sum(registry.find(choice.name).cost_s for choice in spec.measures)
            stages.append(
                Stage(MEASURE, "device", batch_items=MEASURE_BATCH, least_items=MEASURE_LEAST, cost_s=measure_s,
                      timeout_s=MEASURE_S)
            )  # fmt: skip
        stages.append(
            Stage(SCORE, "cpu", grouped=spec.trials > 1, batch_items=size, cost_s=cost_s, timeout_s=timeout_s)
        )
        if spec.judge:
            stages.append(judge_stage(spec.judge))
        if spec.is_grouped:
            stages.append(Stage(REWARD, "cpu", grouped=True, batch_items=BATCH, cost_s=COST_S))
        return stages

    def key(self, spec: ScoreSpec, stage: str, item: ScoreItem) -> dict[str, Any] | None:
        """None for rules: hashing, claiming and storing cost 0.3 ms an item, a rule 0.1 ms, `math_equal` 2 to 3 ms."""
        if stage == JUDGE:
            return self._judge.key(_judge_of(spec), JUDGE, item.for_judge)
        if stage == MEASURE:
            return self._measure_key(spec, item)
        if stage == EPISODE:
            return key_of(episode_of(spec.policy_options, item.response, item.task), self._served())
        if spec.policy:
            return None
        versions = {choice.name: registry.find(choice.name) for choice in spec.scorers if choice not in spec.measures}
        if stage == REWARD or spec.measures or not any(each.cacheable for each in versions.values()):
            return None
        return {
            "spec": spec.model_dump(mode="json"),
            "versions": {name: each.version for name, each in versions.items()},
            "item": item.model_dump(mode="json", exclude={"id", "group_id"}),
        }

    def _measure_key(self, spec: ScoreSpec, item: ScoreItem) -> dict[str, Any] | None:
        """None where it cannot be seen from here what a model is."""
        asked = []
        for choice in spec.measures:
            found, model = registry.find(choice.name), identity(self._models.local(str(choice.options["model"])))
            if model is None:
                return None
            asked.append({"as": choice.part, "name": found.name, "version": found.version, "model": model,
                          "options": choice.options})  # fmt: skip
        shown = item.model_dump(mode="json", include={"prompt", "response", "reference"})
        return {"measures": asked, "item": shown}

    def stored_key(self, spec: ScoreSpec, stage: str, item: ScoreItem, result: Result) -> dict[str, Any] | None:
        if stage == EPISODE:
            ran: Any = result.value
            by = {"name": ran["policy"], "version": ran["version"]} if ran["version"] else None
            return key_of(episode_of(spec.policy_options, item.response, item.task), by)
        return self._judge.stored_key(_judge_of(spec), stage, item.for_judge, result)

    def trials(self, spec: ScoreSpec) -> int:
        return spec.trials

    def labels(self, spec: ScoreSpec) -> Mapping[str, str]:
        return self._judge.labels(spec.judge) if spec.judge else {}

    def batch_key(self, spec: ScoreSpec) -> str:
        """Episodes of all jobs share the servers."""
        if spec.policy:
            return policy.name
        return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()

    def advance(self, spec: ScoreSpec, stage: str, work: Work[ScoreItem], result: Result) -> Result:
        group_stage = REWARD if spec.is_grouped else ""
        if stage in (EPISODE, MEASURE):
            return replace(result, next=SCORE)
        if stage == JUDGE:
            parts, reward = join_judge(spec, work.carry, result)
            return replace(result, score=None if result.error else reward, parts=parts, next=group_stage)
        if stage == SCORE and is_judged(spec, result.parts or {}):
            return replace(result, next=JUDGE)
        return replace(result, next=group_stage if stage == SCORE else "")

    def run(self, context: Context, spec: ScoreSpec, batch: Sequence[Work[ScoreItem]]) -> Sequence[Result]:
        if context.stage == REWARD:
            return finish_groups(spec, batch)
        if context.stage == MEASURE:
            return measure_items(spec, [work.item for work in batch], context.engine(), self._models)
        if spec.policy:
            return self._score_trials(context, batch)
        prepared = _prepared(spec.model_dump_json())
        return [
            STOPPED
            if context.is_cancelled()
            else self._score(spec, prepared, work, (work.carry or {}).get("parts") or {})
            for work in batch
        ]

    def stream(self, context: Context, feed: Feed[ScoreItem]) -> None:
        play(
            context.episodes(),
            feed,
            lambda work: episode_of(work.spec.policy_options, work.item.response, work.item.task, work.trial),
        )

    def _score_trials(self, context: Context, batch: Sequence[Work[ScoreItem]]) -> list[Result]:
        """The items of one job follow each other with all their trials; each job has its own spec."""
        results: list[Result] = []
        while len(results) < len(batch):
            first = batch[len(results)]
            spec: ScoreSpec = first.spec
            assert spec.policy is not None, "jobs of one batch key have one each"
            trials = batch[len(results) : len(results) + spec.trials]
            if context.is_cancelled():
                results += [STOPPED] * len(trials)
                continue
            found = gather(spec.policy.part, [work.carry or {} for work in trials])
            if found.failure:
                result = Result(error=found.failure, value=found.value)
            else:
                scored = self._score(spec, _prepared(spec.model_dump_json()), first, found.parts)
                result = replace(scored, value=found.value, cached=found.cached)
            # The others are counted like the first, and never shown.
            results += [result, *[replace(result, value=None, parts=None)] * (len(trials) - 1)]
        return results

    def _score(
        self, spec: ScoreSpec, prepared: Sequence[Prepared], work: Work[ScoreItem], measured: Mapping[str, float]
    ) -> Result:
        if spec.is_reward:
            return begin(spec, prepared, work.item, isolation(), self._tokenizers, measured)
        return score_item(spec, prepared, work.item, isolation(), measured)

    async def run_one(self, ask: Ask, spec: ScoreSpec, work: Work[ScoreItem]) -> Result:
        judged = Work(work.index, work.item.for_judge, work.carry, work.attempts)
        return await self._judge.run_one(ask, _judge_of(spec), judged)


def _judge_of(spec: ScoreSpec) -> RewardJudge:
    assert spec.judge is not None, "only a spec with a judge has this stage"
    return spec.judge


@lru_cache(maxsize=64)
def _prepared(spec: str) -> tuple[Prepared, ...]:
    """Compiled patterns and checked schemas, kept from one batch of a job to the next."""
    return prepare(ScoreSpec.model_validate_json(spec))


def _isolated_s(spec: ScoreSpec) -> float:
    """Seconds that the isolated scorers may take for one item, restarts included; 0 when there are none."""
    choices = [(registry.find(choice.name), choice.options) for choice in spec.scorers]
    limits: list[float] = [
        found.options.model_validate(options).timeout_s
        for found, options in choices
        if isinstance(found, Scorer) and found.isolated
    ]
    return sum(TRIES * (PATIENCE * limit_s + GRACE_S) + GRACE_S for limit_s in limits)
