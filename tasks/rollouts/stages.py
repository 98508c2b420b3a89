"""Stages of a rollout: generation on devices, then the reward stages of a score job, applied to groups of samples.

An item is a prompt with its group of samples: a group is therefore always complete, and the rewards that depend on the
group are computed as soon as the item's last stage ends.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tasks.errors import AssayError
from tasks.inference.engine import ENGINE, ModelRef
from tasks.inference.generation import generate
from tasks.inference.model import InferenceItem
from tasks.jobs.model import Result, StageLimits
from tasks.jobs.stage import AskStage, BatchStage, Context, Feed, Stage, StreamStage, Work
from tasks.providers.call import Ask
from tasks.rollouts import groups, simulation
from tasks.rollouts.groups import Group
from tasks.rollouts.model import RolloutItem, RolloutSpec
from tasks.rollouts.weight_follower import WeightFollower
from tasks.rollouts.weight_versions import Versions
from tasks.scoring.model import ScoreItem
from tasks.scoring.reward import finish_groups
from tasks.scoring.stages import REWARD

GENERATE = "generate"
#: Initial estimate of the seconds that a prompt takes.
COST_S = 1.0
#: Seconds beyond the generation timeout after which a worker counts as hung: the model may have to be loaded first.
GRACE_S = 600.0


class Pipeline:
    """Order of a rollout's stages after generation; builds the bundle of a finished group for the sample queue."""

    def __init__(self, spec: RolloutSpec, stages: Sequence[Stage[ScoreItem]]) -> None:
        """`stages`: the stages that reward samples individually; empty for a rollout without rewards."""
        self.spec = spec
        self.stages = stages
        self._names = [stage.name for stage in stages]

    @property
    def first(self) -> str:
        return next(iter(self._names), "")

    def advance(self, work: Work[RolloutItem], group: Group, after: str) -> Result:
        """Send the group to the next stage that any of its samples needs; finish it if no stage is left."""
        wanted = {row.get("next") for row in group["rows"] if not row.get("error")}
        following = next((name for name in self._names[self._names.index(after) + 1 :] if name in wanted), "")
        return self.send(work, group, following)

    def send(self, work: Work[RolloutItem], group: Group, following: str) -> Result:
        if following:
            value: Any = group
            return Result(value=value, next=following)
        spec = self.spec
        if spec.reward and spec.reward.is_grouped:
            group = {**group, "rows": self._with_group_rewards(work, group)}
        is_rewarded = bool(spec.reward or (spec.simulated and spec.simulated.reward_s))
        return groups.finished(work.index, work.item, group, is_rewarded, spec.version)

    def samples(self, work: Work[RolloutItem], stage: str) -> list[tuple[int, Work[ScoreItem]]]:
        """Return the samples that a stage must process, with their indices in the group."""
        return self._samples(groups.group_of(work), work, stage, self.first)

    def _with_group_rewards(self, work: Work[RolloutItem], group: Group) -> list[dict[str, Any]]:
        """Return the rows with the rewards that depend on the group. Failed rows stay failed."""
        group = {**group, "rows": [{**row, "next": REWARD} for row in group["rows"]]}
        works = [each for _, each in self._samples(group, work, REWARD, REWARD)]
        assert self.spec.reward is not None
        return [groups.row_of(result) for result in finish_groups(self.spec.reward, works)]

    def _samples(
        self, group: Group, work: Work[RolloutItem], stage: str, first: str
    ) -> list[tuple[int, Work[ScoreItem]]]:
        assert self.spec.reward is not None, "only a rollout with a reward has reward stages"
        return groups.samples_of(group, work, stage, first, self.spec.reward)


class GenerateStage(StreamStage[RolloutItem]):
    """Generates the samples of prompts on a device that follows the rollout's weights."""

    def __init__(self, pipeline: Pipeline, find_model: Callable[[RolloutSpec], ModelRef], versions: Versions) -> None:
        """`find_model` is called only on the device: other workers may lack the model."""
        spec = pipeline.spec
        limits = StageLimits(batch_items=1, cost_s=COST_S, timeout_s=2 * spec.generation_timeout + GRACE_S)
        super().__init__(GENERATE, "device", limits)
        self._pipeline = pipeline
        self._find_model = find_model
        self._versions = versions

    def advance(self, work: Work[RolloutItem], result: Result) -> Result:
        if result.error:
            return result
        group: Any = result.value
        return self._pipeline.send(work, group, self._following)

    @property
    def _following(self) -> str:
        simulated = self._pipeline.spec.simulated
        return REWARD if simulated and simulated.reward_s else self._pipeline.first

    def stream(self, context: Context, feed: Feed[RolloutItem]) -> None:
        first = feed.more(1)
        if not first:
            return
        spec: RolloutSpec = first[0].spec
        if spec.simulated:
            simulation.generate(context, feed, first, self._versions)
            return
        engine, model = context.get(ENGINE), self._find_model(spec)
        follower = WeightFollower(self._versions, spec.rollout, context.worker, engine, model, spec.interrupt)
        follower.renew()
        generate(context, _Prompts(feed, first), engine, model, follower, groups.generated)


class SimulatedRewardStage(AskStage[RolloutItem]):
    """Sleeps, and gives each sample a random reward with the prompt's index as seed."""

    def __init__(self, pipeline: Pipeline, simulated: simulation.Simulation) -> None:
        super().__init__(REWARD, "api", StageLimits(batch_items=64, cost_s=simulated.reward_s, timeout_s=600.0))
        self._pipeline = pipeline
        self._simulated = simulated

    def advance(self, work: Work[RolloutItem], result: Result) -> Result:
        if result.error:
            return result
        rows: Any = result.value
        return self._pipeline.send(work, {**groups.group_of(work), "rows": rows}, "")

    async def ask(self, ask: Ask, work: Work[RolloutItem]) -> Result:  # noqa: ARG002
        return await simulation.reward(self._simulated, work)


class _GroupStage(Stage[RolloutItem]):
    """Stage of a score job, applied to the whole group of a prompt's samples."""

    def __init__(self, pipeline: Pipeline, stage: Stage[ScoreItem]) -> None:
        super().__init__(stage.name, stage.pool, _limits_for_groups(stage.limits, pipeline.spec.sampling.n))
        self._pipeline = pipeline
        self._of_samples = stage

    def advance(self, work: Work[RolloutItem], result: Result) -> Result:
        if result.error:
            return result
        group, changed = groups.group_of(work), _rows(result)
        rows = [changed.get(str(place), row) for place, row in enumerate(group["rows"])]
        return self._pipeline.advance(work, {**group, "rows": rows}, after=self.name)

    def _samples(self, work: Work[RolloutItem]) -> list[tuple[int, Work[ScoreItem]]]:
        return self._pipeline.samples(work, self.name)

    def _joined(self, samples: Sequence[tuple[int, Work[ScoreItem]]], results: Sequence[Result]) -> Result:
        """Join the results of the samples into the rows that this stage has changed, by index in the group."""
        rows: Any = {}
        for (place, work), result in zip(samples, results, strict=True):
            rows[str(place)] = groups.row_of(self._of_samples.advance(work, result))
        return Result(value=rows)


class GroupBatchStage(_GroupStage, BatchStage[RolloutItem]):
    def __init__(self, pipeline: Pipeline, stage: BatchStage[ScoreItem]) -> None:
        super().__init__(pipeline, stage)
        self._stage = stage

    def run(self, context: Context, batch: Sequence[Work[RolloutItem]]) -> Sequence[Result]:
        """Run the stage on the samples of the groups in a single batch."""
        found = [self._samples(work) for work in batch]
        results = iter(self._stage.run(context, [each for samples in found for _, each in samples]))
        return [self._joined(samples, [next(results) for _ in samples]) for samples in found]


class GroupAskStage(_GroupStage, AskStage[RolloutItem]):
    def __init__(self, pipeline: Pipeline, stage: AskStage[ScoreItem]) -> None:
        super().__init__(pipeline, stage)
        self._stage = stage

    async def ask(self, ask: Ask, work: Work[RolloutItem]) -> Result:
        """Call the API for the samples concurrently. After a retryable failure the whole group is retried; when no
        tries are left, the failed samples have no reward."""
        samples = self._samples(work)
        replies = await asyncio.gather(*(self._ask_one(ask, each) for _, each in samples), return_exceptions=True)
        results = []
        for reply in replies:  # every call has ended, so that none runs on unnoticed when a bug fails the item
            if isinstance(reply, BaseException):
                raise reply
            results.append(reply)
        joined = self._joined(samples, results)
        transient = next((result for result in results if result.error and result.error.retryable), None)
        return replace(transient, if_not_retried=joined) if transient else joined

    async def _ask_one(self, ask: Ask, work: Work[ScoreItem]) -> Result:
        try:
            return await self._stage.ask(ask, work)
        except AssayError as error:
            return Result.of_error(error)


def for_groups(pipeline: Pipeline, stage: Stage[ScoreItem]) -> Stage[RolloutItem]:
    """Wrap a stage of a score job, so that it processes groups of samples as items."""
    match stage:
        case BatchStage():
            return GroupBatchStage(pipeline, stage)
        case AskStage():
            return GroupAskStage(pipeline, stage)
    raise TypeError(f"The stage {stage.name} cannot reward samples.")


def _limits_for_groups(limits: StageLimits, n: int) -> StageLimits:
    return StageLimits(
        batch_items=max(1, limits.batch_items // n),
        cost_s=limits.cost_s * n,
        timeout_s=limits.timeout_s,
        most_out=-(-limits.most_out // n),
    )


def _rows(result: Result) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", result.value)


class _Prompts:
    """Adapter of a feed: presents prompts as rows of an inference job, each with a seed derived from its index."""

    def __init__(self, feed: Feed[RolloutItem], first: Sequence[Work[RolloutItem]]) -> None:
        self._feed, self._first = feed, list(first)
        self._n: int = first[0].spec.sampling.n
        self._works: dict[int, Work[RolloutItem]] = {}
        self.is_cancelled = feed.is_cancelled

    def more(self, room: int) -> Sequence[Work[InferenceItem]]:
        """Take ceil(room / n) prompts, so that their samples fill the free rows; leave the rest to other devices."""
        works, self._first = self._first or self._feed.more(-(-room // self._n)), []
        rows = [
            Work(each.index, each.item.as_row(), None, each.attempts, each.spec.inference(each.index)) for each in works
        ]
        self._works |= {id(row): work for row, work in zip(rows, works, strict=True)}
        return rows

    def keep_file(self, work: Work[InferenceItem], body: bytes, suffix: str) -> str | None:
        return self._feed.keep_file(self._works[id(work)], body, suffix)

    def done(self, work: Work[InferenceItem], result: Result) -> None:
        self._feed.done(self._works.pop(id(work)), result)
