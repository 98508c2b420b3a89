"""Stages of a score job: episodes and model scorers on devices, rules on CPU workers, then the rewards of groups.

The judge stage is `tasks.judging.stage.JudgeStage`. `kind.py` selects the stages that a spec needs.
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

#: Returns name and version of the policy that is served now; None while servers differ, or the version is unknown.
Served = Callable[[], Mapping[str, str] | None]

#: Maximum items of a batch. Isolated scorers may take seconds per item, and their batch has a deadline.
BATCH, ISOLATED_BATCH = 200, 20
#: Timeout of a scorer per item, in seconds, after which its worker counts as hung; built-in scorers stay far below it.
MOST_S = 10.0
#: Seconds that an item takes besides its scorers: penalties, or its share of a group.
COST_S = 0.0001
#: For model scorers: maximum items of a batch, minimum items of a chunk, and the timeout of a batch in seconds.
MEASURE_BATCH, MEASURE_LEAST, MEASURE_S = 256, 32, 600.0
#: Number of episodes that a worker takes together: few, so that at the end of a job no episode queues behind earlier
#: episodes of its worker while a different server is idle. And the timeout of an episode, in multiples of `episode_s`:
#: the episode may have to wait for an earlier episode, and for its server.
EPISODE_BATCH, EPISODE_PATIENCE = 2, 4


class EpisodeStage(StreamStage[ScoreItem]):
    """Runs robot episodes: an episode per trial of an item. A result is cached under the policy that really ran it."""

    def __init__(self, spec: ScoreSpec, served: Served, episode_s: float) -> None:
        """`episode_s`: timeout of an episode, in seconds."""
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
    """Runs the model scorers on a device: reward models, similarity, likelihood."""

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
        """Return the cache key; None if this host cannot identify a model."""
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
    """Runs the rule scorers on a CPU, item by item, and computes the parts of a reward that need no group."""

    def __init__(self, spec: ScoreSpec, tokenizers: Tokenizers) -> None:
        super().__init__(SCORE, "cpu", rule_limits(spec))
        self._spec = spec
        self._tokenizers = tokenizers

    def key(self, work: Work[ScoreItem]) -> Key | None:
        """Return the cache key; None for cheap rules: hashing, claiming and storing cost 0.3 ms per item, a rule
        0.1 ms, `math_equal` 2 to 3 ms."""
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
    """Joins the episodes of an item to a single outcome, and scores it together with the rules."""

    def __init__(self, spec: ScoreSpec, tokenizers: Tokenizers) -> None:
        super().__init__(SCORE, "cpu", rule_limits(spec), grouped=spec.trials > 1)
        self._tokenizers = tokenizers

    def run(self, context: Context, batch: Sequence[Work[ScoreItem]]) -> Sequence[Result]:
        """Score the items of a batch. The items of a job are consecutive, each with its trials; every job has its own
        spec."""
        results: list[Result] = []
        while len(results) < len(batch):
            first = batch[len(results)]
            spec: ScoreSpec = first.spec
            assert spec.policy is not None, "every job with this batch key has a policy"
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
            # The outcomes of the remaining trials are counted like the first, and never shown.
            results += [result, *[replace(result, value=None, parts=None)] * (len(trials) - 1)]
        return results


class RewardStage(BatchStage[ScoreItem]):
    """Adds the rewards that depend on the group: penalties against the group's median, and the group's statistics."""

    def __init__(self, spec: ScoreSpec) -> None:
        super().__init__(REWARD, "cpu", StageLimits(batch_items=BATCH, cost_s=COST_S), grouped=True)
        self._spec = spec

    def run(self, context: Context, batch: Sequence[Work[ScoreItem]]) -> Sequence[Result]:  # noqa: ARG002
        return finish_groups(self._spec, batch)


def rule_limits(spec: ScoreSpec) -> StageLimits:
    """Return the limits of a rule stage. Each isolated scorer is killed at its own time limit, long before the batch
    times out; the batch timeout covers only unforeseen hangs."""
    isolated_s = _isolated_s(spec)
    size = ISOLATED_BATCH if isolated_s else BATCH
    rules = [found for choice in spec.scorers if isinstance(found := registry.find(choice.name), Scorer)]
    return StageLimits(
        batch_items=size,
        cost_s=COST_S + sum(rule.cost_s for rule in rules),
        timeout_s=START_S + size * (isolated_s or max(1, len(spec.scorers)) * MOST_S),
    )


def _isolated_s(spec: ScoreSpec) -> float:
    """Return the maximum seconds that the isolated scorers take per item, restarts included; 0 without isolated
    scorers."""
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
    """Return prepared scorers, with compiled patterns and checked schemas, cached between the batches of a job."""
    return prepare_scorers(ScoreSpec.model_validate_json(spec))
