"""Job kind `rollout`: prompts generated on devices, rewarded as a score job would, put into the sample queue.

An item is one prompt with all its samples, so that a group is whole by construction, and what a group adds to a reward
is known as soon as the item's last stage is over. Such jobs are made by `Rollouts`, not by the door alone.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tasks.apis.call import Ask
from tasks.errors import AssayError, InvalidRequest, Retryable
from tasks.inference.engine import ModelRef
from tasks.inference.generation import generate
from tasks.inference.model import InferenceItem
from tasks.inference.models import Models
from tasks.jobs.books import MOST_ATTEMPTS
from tasks.jobs.kinds import Context, Feed, Work
from tasks.jobs.model import ItemError, Result, Stage
from tasks.rollouts import groups, simulation
from tasks.rollouts.following import Follower
from tasks.rollouts.model import RolloutItem, RolloutSpec
from tasks.rollouts.versions import Versions
from tasks.scoring.kind import REWARD, Score
from tasks.scoring.model import ScoreSpec
from tasks.scoring.reward import finish_groups

GENERATE = "generate"
#: A first guess of the seconds one prompt takes.
COST_S = 1.0
#: Seconds beyond its generation timeout after which a worker counts as hung: a model may have to be loaded first.
GRACE_S = 600.0


class Rollout:
    name = "rollout"
    spec_model = RolloutSpec
    item_model = RolloutItem

    def __init__(self, score: Score, models: Models, versions: Versions) -> None:
        self._score = score
        self._models = models
        self._versions = versions

    def check(self, spec: RolloutSpec) -> None:
        if not spec.rollout:
            raise InvalidRequest("kind: a rollout is made by POST /v1/rollouts.", field="kind")
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
        """A copy of its own, whose weights change under it."""
        return replace(self._models.find(spec.inference()), copy=spec.rollout)

    def stages(self, spec: RolloutSpec) -> Sequence[Stage]:
        first = Stage(
            GENERATE, "device", streams=True, batch_items=1, cost_s=COST_S,
            timeout_s=2 * spec.generation_timeout + GRACE_S,
        )  # fmt: skip
        if spec.simulated:
            return [first, *simulation.stages(spec.simulated)]
        return [first, *(_for_groups(stage, spec.sampling.n) for stage in self._reward_stages(spec))]

    def key(self, spec: RolloutSpec, stage: str, item: RolloutItem) -> dict[str, Any] | None:  # noqa: ARG002  # nothing is shared
        """None: every sample is drawn anew, from weights that change."""
        return None

    def labels(self, spec: RolloutSpec) -> Mapping[str, str]:
        return {"model": spec.model}

    def batch_key(self, spec: RolloutSpec) -> str:
        """Nothing else may be generated with its weights."""
        return str(self.model(spec)) if spec.model else spec.rollout

    # --- generating ---

    def stream(self, context: Context, feed: Feed[RolloutItem]) -> None:
        first = feed.more(1)
        if not first:
            return
        spec: RolloutSpec = first[0].spec
        if spec.simulated:
            simulation.stream(context, feed, first, self._versions)
            return
        engine, model = context.engine(), self.model(spec)
        follower = Follower(self._versions, spec.rollout, context.worker, engine, model, spec.interrupt)
        follower.renew()
        generate(context, _Prompts(feed, first), engine, model, follower, groups.generated)

    # --- rewarding ---

    def _reward_stages(self, spec: RolloutSpec) -> list[Stage]:
        return [stage for stage in self._score.stages(spec.reward) if not stage.grouped] if spec.reward else []

    def _first(self, spec: RolloutSpec) -> str:
        return next((stage.name for stage in self._reward_stages(spec)), "")

    def run(self, context: Context, spec: RolloutSpec, batch: Sequence[Work[RolloutItem]]) -> Sequence[Result]:
        """One stage of the rewards of these groups, all their samples together."""
        reward = _reward_of(spec)
        found = [groups.works_of(work, context.stage, self._first(spec)) for work in batch]
        results = iter(self._score.run(context, reward, [each for works in found for _, each in works]))
        return [self._joined(spec, context.stage, works, [next(results) for _ in works]) for works in found]

    async def run_one(self, ask: Ask, spec: RolloutSpec, work: Work[RolloutItem]) -> Result:
        """A judge's verdict on each sample. While it may help, a group is tried again as a whole."""
        if spec.simulated:
            return await simulation.reward(spec.simulated, work)
        reward, stage = _reward_of(spec), self._judge_stage(spec)
        works = groups.works_of(work, stage, self._first(spec))
        asked = (self._score.run_one(ask, reward, each) for _, each in works)
        results = []
        for each in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(each, BaseException) and not isinstance(each, AssayError):
                raise each
            if isinstance(each, Retryable) and work.attempts + 1 < MOST_ATTEMPTS:
                raise each
            results.append(Result(error=ItemError(each.name, str(each))) if isinstance(each, AssayError) else each)
        return self._joined(spec, stage, works, results)

    def _judge_stage(self, spec: RolloutSpec) -> str:
        return next(stage.name for stage in self._reward_stages(spec) if stage.asks)

    def _joined(
        self, spec: RolloutSpec, stage: str, works: Sequence[tuple[int, Work[Any]]], results: Sequence[Result]
    ) -> Result:
        """The rows of a group that this stage has changed, by place."""
        reward = _reward_of(spec)
        rows: Any = {}
        for (place, work), result in zip(works, results, strict=True):
            rows[str(place)] = groups.row_of(self._score.advance(reward, stage, work, result))
        return Result(value=rows)

    def advance(self, spec: RolloutSpec, stage: str, work: Work[RolloutItem], result: Result) -> Result:
        if result.error:
            return result
        if stage == GENERATE:
            following = simulation.REWARD if spec.simulated and spec.simulated.reward_s else self._first(spec)
            group: Any = result.value
        elif spec.simulated:
            following, group = "", (work.carry or {})["value"] | {"rows": result.value}
        else:
            group = dict((work.carry or {})["value"])
            changed: Any = result.value
            group["rows"] = [changed.get(str(place), row) for place, row in enumerate(group["rows"])]
            following = self._next(spec, stage, group)
        if following:
            return replace(result, value=group, next=following)
        if spec.reward and spec.reward.is_grouped:
            group = group | {"rows": _grouped(spec.reward, work, group)}
        rewarded = bool(spec.reward or (spec.simulated and spec.simulated.reward_s))
        return groups.finished(work.index, work.item, group, rewarded, spec.version)

    def _next(self, spec: RolloutSpec, stage: str, group: Mapping[str, Any]) -> str:
        """The next stage that any of its samples needs."""
        names = [each.name for each in self._reward_stages(spec)]
        wanted = {row.get("next") for row in group["rows"] if not row.get("error")}
        return next((name for name in names[names.index(stage) + 1 :] if name in wanted), "")


class _Prompts:
    """The prompts of a feed as rows that an engine is asked, each with the randomness of its index."""

    def __init__(self, feed: Feed[RolloutItem], first: Sequence[Work[RolloutItem]]) -> None:
        self._feed, self._first = feed, list(first)
        self._n: int = first[0].spec.sampling.n
        self._works: dict[int, Work[RolloutItem]] = {}
        self.is_cancelled = feed.is_cancelled

    def more(self, room: int) -> Sequence[Work[InferenceItem]]:
        """As many as have so many samples: others may take what has no room here yet."""
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


def _reward_of(spec: RolloutSpec) -> ScoreSpec:
    assert spec.reward is not None, "only a spec with a reward has this stage"
    return spec.reward


def _grouped(reward: ScoreSpec, work: Work[RolloutItem], group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows with what the group adds. Those that failed stay failed."""
    carried = {"value": {**group, "rows": [{**row, "next": REWARD} for row in group["rows"]]}}
    works = [each for _, each in groups.works_of(replace(work, carry=carried), REWARD, REWARD)]
    return [groups.row_of(result) for result in finish_groups(reward, works)]


def _for_groups(stage: Stage, n: int) -> Stage:
    """A stage of a score job whose items are groups of n."""
    return replace(
        stage, batch_items=max(1, stage.batch_items // n), least_items=1, cost_s=stage.cost_s * n, answers="",
        rekeys=False, most_out=-(-stage.most_out // n),
    )  # fmt: skip
