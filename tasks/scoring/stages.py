"""The stages of a score job: episodes and models on devices, rules on CPU workers, and what each group adds.

The judge stage is `tasks.judging.stage.JudgeStage`. `kind.py` says which of them a spec needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

from tasks.episodes.model import EPISODES, EpisodeSpec
from tasks.inference.engine import ENGINE
from tasks.inference.models import Models, identity
from tasks.jobs.model import STOPPED, Result, StageLimits
from tasks.jobs.stage import BatchStage, Context, Feed, Key, StreamStage, Work
from tasks.judging.stage import JUDGE
from tasks.scoring import registry
from tasks.scoring.combination import PreparedScorer, prepare_scorers, score_item
from tasks.scoring.isolated_process import WALL_CLOCK_FACTOR
from tasks.scoring.isolation import GRACE_S, MAX_ATTEMPTS, START_S, isolation
from tasks.scoring.lengths import Tokenizers
from tasks.scoring.model import ScoreItem, ScoreSpec
from tasks.scoring.model_scorer_batch import run_model_scorers
from tasks.scoring.policy import episode_of, gather, key_of, play, policy
from tasks.scoring.reward import begin, finish_groups, is_judged
from tasks.scoring.scorer import Scorer

EPISODE, MEASURE, SCORE, REWARD = "episode", "measure", "score", "reward"

#: Name and version of the policy that is served now; None while several are, or it is unknown.
Served = Callable[[], Mapping[str, str] | None]

#: Items of a batch. Isolated scorers may take seconds each, and their batch has a deadline.
BATCH, ISOLATED_BATCH = 200, 20
#: Seconds a scorer may take for one item before its worker counts as hung; none of ours comes near.
MOST_S = 10.0
#: Seconds that an item takes beside its scorers: penalties, or its share of a group.
COST_S = 0.0001
#: Items of a batch that models are asked about, of a chunk at least, and the seconds that it may take.
MEASURE_BATCH, MEASURE_LEAST, MEASURE_S = 256, 32, 600.0
#: Episodes that a worker takes at a time: few, so that towards the end none waits behind others while another server is
#: idle. And how many episodes' time one may take before its worker counts as hung: it may have to wait for another, and
#: for its server.
EPISODE_BATCH, EPISODE_PATIENCE = 2, 4


class EpisodeStage(StreamStage[ScoreItem]):
    """Robot episodes, one per trial of an item. A result is cached under the policy that really ran it."""

    def __init__(self, spec: ScoreSpec, served: Served, episode_s: float) -> None:
        """`episode_s`: seconds that one episode may take."""
        limits = StageLimits(
            batch_items=EPISODE_BATCH,
            cost_s=policy.cost_s,
            timeout_s=EPISODE_PATIENCE * episode_s,
            most_out=spec.policy_options.in_flight,
        )
        super().__init__(EPISODE, "policy", limits)
        self._served = served

    def key(self, work: Work[ScoreItem]) -> Key | None:
        return key_of(_episode(work), self._served())

    def stored_key(self, work: Work[ScoreItem], result: Result, key: Key) -> Key | None:  # noqa: ARG002
        ran: Any = result.value
        by = {"name": ran["policy"], "version": ran["version"]} if ran["version"] else None
        return key_of(_episode(work), by)

    def advance(self, work: Work[ScoreItem], result: Result) -> Result:  # noqa: ARG002
        return replace(result, next=SCORE)

    def stream(self, context: Context, feed: Feed[ScoreItem]) -> None:
        play(context.get(EPISODES), feed, lambda work: _episode(work, work.trial))


class MeasureStage(BatchStage[ScoreItem]):
    """Scorers that ask models on a device: reward models, similarity, likelihood."""

    def __init__(self, spec: ScoreSpec, models: Models) -> None:
        limits = StageLimits(
            batch_items=MEASURE_BATCH,
            least_items=MEASURE_LEAST,
            cost_s=sum(registry.find(choice.name).cost_s for choice in spec.model_scorers),
            timeout_s=MEASURE_S,
        )
        super().__init__(MEASURE, "device", limits)
        self._spec = spec
        self._models = models

    def key(self, work: Work[ScoreItem]) -> Key | None:
        """None if a model cannot be identified from here."""
        asked = []
        for choice in self._spec.model_scorers:
            found, model = registry.find(choice.name), identity(self._models.local(str(choice.options["model"])))
            if model is None:
                return None
            asked.append(
                {
                    "as": choice.part,
                    "name": found.name,
                    "version": found.version,
                    "model": model,
                    "options": choice.options,
                }
            )
        shown = work.item.model_dump(mode="json", include={"prompt", "response", "reference"})
        return {"measures": asked, "item": shown}

    def advance(self, work: Work[ScoreItem], result: Result) -> Result:  # noqa: ARG002
        return replace(result, next=SCORE)

    def run(self, context: Context, batch: Sequence[Work[ScoreItem]]) -> Sequence[Result]:
        return run_model_scorers(self._spec, [work.item for work in batch], context.get(ENGINE), self._models)


class RuleStage(BatchStage[ScoreItem]):
    """Scorers that compute on a CPU, item by item; what is known of an item by itself."""

    def __init__(self, spec: ScoreSpec, tokenizers: Tokenizers) -> None:
        super().__init__(SCORE, "cpu", rule_limits(spec))
        self._spec = spec
        self._tokenizers = tokenizers

    def key(self, work: Work[ScoreItem]) -> Key | None:
        """None for cheap rules: hashing, claiming and storing cost 0.3 ms an item, a rule 0.1, `math_equal` 2 to 3."""
        if self._key_of_job is None:
            return None
        return {**self._key_of_job, "item": work.item.model_dump(mode="json", exclude={"id", "group_id"})}

    @cached_property
    def _key_of_job(self) -> Key | None:
        spec = self._spec
        found = {choice.name: registry.find(choice.name) for choice in spec.scorers}
        if spec.model_scorers or not any(each.cacheable for each in found.values()):
            return None
        versions = {name: each.version for name, each in found.items()}
        return {"spec": spec.model_dump(mode="json"), "versions": versions}

    def advance(self, work: Work[ScoreItem], result: Result) -> Result:  # noqa: ARG002
        if is_judged(self._spec, result.parts or {}):
            return replace(result, next=JUDGE)
        return replace(result, next=REWARD if self._spec.is_grouped else "")

    def run(self, context: Context, batch: Sequence[Work[ScoreItem]]) -> Sequence[Result]:
        prepared = _prepared(self._spec.model_dump_json())
        return [
            STOPPED
            if context.is_cancelled()
            else _score(self._spec, prepared, work, (work.carry or {}).get("parts") or {}, self._tokenizers)
            for work in batch
        ]


class TrialsStage(BatchStage[ScoreItem]):
    """Makes one outcome of an item's episodes, and scores it together with the rules."""

    def __init__(self, spec: ScoreSpec, tokenizers: Tokenizers) -> None:
        super().__init__(SCORE, "cpu", rule_limits(spec), grouped=spec.trials > 1)
        self._tokenizers = tokenizers

    def run(self, context: Context, batch: Sequence[Work[ScoreItem]]) -> Sequence[Result]:
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
                scored = _score(spec, _prepared(spec.model_dump_json()), first, found.parts, self._tokenizers)
                result = replace(scored, value=found.value, cached=found.cached)
            # The others are counted like the first, and never shown.
            results += [result, *[replace(result, value=None, parts=None)] * (len(trials) - 1)]
        return results


class RewardStage(BatchStage[ScoreItem]):
    """What a group adds to its items: the penalties against the group's median, and the group's statistics."""

    def __init__(self, spec: ScoreSpec) -> None:
        super().__init__(REWARD, "cpu", StageLimits(batch_items=BATCH, cost_s=COST_S), grouped=True)
        self._spec = spec

    def run(self, context: Context, batch: Sequence[Work[ScoreItem]]) -> Sequence[Result]:  # noqa: ARG002
        return finish_groups(self._spec, batch)


def rule_limits(spec: ScoreSpec) -> StageLimits:
    """Isolated scorers are ended one by one long before the batch times out; its limit is for hangs nobody foresaw."""
    isolated_s = _isolated_s(spec)
    size = ISOLATED_BATCH if isolated_s else BATCH
    rules = [found for choice in spec.scorers if isinstance(found := registry.find(choice.name), Scorer)]
    return StageLimits(
        batch_items=size,
        cost_s=COST_S + sum(rule.cost_s for rule in rules),
        timeout_s=START_S + size * (isolated_s or max(1, len(spec.scorers)) * MOST_S),
    )


def _isolated_s(spec: ScoreSpec) -> float:
    """Seconds that the isolated scorers may take for one item, restarts included; 0 when there are none."""
    choices = [(registry.find(choice.name), choice.options) for choice in spec.scorers]
    limits: list[float] = [
        found.options.model_validate(options).timeout_s
        for found, options in choices
        if isinstance(found, Scorer) and found.isolated
    ]
    return sum(MAX_ATTEMPTS * (WALL_CLOCK_FACTOR * limit_s + GRACE_S) + GRACE_S for limit_s in limits)


def _episode(work: Work[ScoreItem], trial: int = 0) -> EpisodeSpec:
    return episode_of(work.spec.policy_options, work.item.response, work.item.task, trial)


def _score(
    spec: ScoreSpec,
    prepared: Sequence[PreparedScorer],
    work: Work[ScoreItem],
    measured: Mapping[str, float],
    tokenizers: Tokenizers,
) -> Result:
    if spec.is_reward:
        return begin(spec, prepared, work.item, isolation(), tokenizers, measured)
    return score_item(spec, prepared, work.item, isolation(), measured)


@lru_cache(maxsize=64)
def _prepared(spec: str) -> tuple[PreparedScorer, ...]:
    """Compiled patterns and checked schemas, kept from one batch of a job to the next."""
    return prepare_scorers(ScoreSpec.model_validate_json(spec))
