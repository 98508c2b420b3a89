"""Scorer `policy`: uses a response as the instruction of a robot policy; the score is the policy's success rate.

Every trial of an item is an episode on a device that has a policy server. This module builds the spec of each episode,
and joins the trials of an item. Not covered: the execution of episodes, which is in `workers/policies`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Annotated, Any

from pydantic import Field

from tasks.episodes.model import (
    Environment,
    Episode,
    Episodes,
    EpisodeSpec,
    EpisodeTask,
    Index,
    Libero,
    Reach,
    ReplanSteps,
    Seed,
)
from tasks.episodes.summary import as_record, summarise
from tasks.errors import AssayError, NoLongerWanted, Retryable, StorageUnavailable
from tasks.jobs.model import STOPPED, ItemError, Result
from tasks.jobs.stage import Feed, Work
from tasks.scoring.extraction import extract_text
from tasks.scoring.messages import Chat
from tasks.scoring.scorer import Options

Repeats = Annotated[int, Field(ge=1, le=1000)]
MOST_IN_FLIGHT = 10_000


class PolicyOptions(Options):
    """Share of episodes in which a robot policy succeeds with the response as its instruction.

    Each trial is an episode of its own, with the next initial state. An episode that could not run is not an
    unsuccessful episode: the score is the mean over the episodes that ran, and an item fails if no episode ran.
    """

    environment: Environment = Field(
        Reach(), description="Environment of the episodes: `reach`, `gymnasium` or `libero`."
    )
    trials: Repeats = Field(1, description="Number of episodes per item.")
    task_id: Index = Field(0, description="Task of the environment, for items without a task of their own.")
    seed: Seed = Field(7, description="Random seed of the environment, for items without a seed.")
    init_state: Index = Field(0, description="Initial state of the first trial, for items without an initial state.")
    replan_steps: ReplanSteps | None = Field(
        None, description="Steps executed of each plan before the next inference; default: the environment's."
    )
    max_steps: int | None = Field(
        None, ge=1, le=100_000, description="Maximum steps of an episode; default: the task's maximum."
    )
    in_flight: int = Field(
        0,
        ge=0,
        le=MOST_IN_FLIGHT,
        description="Maximum concurrent episodes of the job; 0: as many as keep the servers busy.",
    )
    video: bool = Field(False, description="Whether episodes are recorded on video; then they are not cached.")


@dataclass(frozen=True, slots=True)
class PolicyScorer:
    """Entry of the scorer in the registry, beside rule scorers and model scorers."""

    name: str = "policy"
    options: type[PolicyOptions] = PolicyOptions
    version: str = "1"
    cost_s: float = 5.0
    isolated = False
    cacheable = True

    @property
    def description(self) -> str:
        return cleandoc(self.options.__doc__ or "")


policy = PolicyScorer()


def episode_of(options: PolicyOptions, response: Chat, task: EpisodeTask | None, trial: int = 0) -> EpisodeSpec:
    """Build the spec of a trial's episode. For an empty response the instruction is the item's own, or else the
    environment's."""
    task = task or EpisodeTask()
    environment = options.environment
    if isinstance(environment, Libero) and task.suite:
        environment = environment.model_copy(update={"suite": task.suite})
    return EpisodeSpec(
        environment=environment,
        task_id=options.task_id if task.task_id is None else task.task_id,
        seed=options.seed if task.seed is None else task.seed,
        init_state=(options.init_state if task.init_state is None else task.init_state) + trial,
        instruction=extract_text(response, options.read, options.within, options.after).strip() or task.instruction,
        replan_steps=options.replan_steps,
        max_steps=options.max_steps,
        video=options.video,
    )


def key_of(spec: EpisodeSpec, served: Mapping[str, str] | None) -> dict[str, Any] | None:
    """Return the cache key of an episode: its spec and its policy. None for an unknown policy, and for videos."""
    if served is None or spec.video:
        return None
    return {"policy": dict(served), "episode": spec.model_dump(mode="json")}


def play(episodes: Episodes, feed: Feed[Any], spec_of: Callable[[Work[Any]], EpisodeSpec]) -> None:
    """Run the episodes of the feed until it is empty, in the order of its items."""
    given = 0
    works: dict[int, tuple[Work[Any], EpisodeSpec]] = {}

    def more(room: int) -> list[EpisodeSpec]:
        nonlocal given
        specs = []
        for work in feed.more(room):
            specs.append(spec_of(work))
            works[given] = work, specs[-1]
            given += 1
        return specs

    def done(number: int, result: Episode | AssayError) -> None:
        work, spec = works.pop(number)
        try:
            feed.done(work, outcome(work, spec, result))
        except StorageUnavailable as error:  # the video cannot be stored: the episode runs again later
            feed.done(work, outcome(work, spec, error))

    def outcome(work: Work[Any], spec: EpisodeSpec, result: Episode | AssayError) -> Result:
        if isinstance(result, Episode):
            video = feed.keep_file(work, result.video, "webp") if result.video else None
            return Result(value=as_record(result, spec, work.trial, video))
        if isinstance(result, NoLongerWanted):
            return STOPPED
        return Result(error=ItemError(result.name, str(result), retryable=isinstance(result, Retryable)))

    episodes.run(more, done, feed.is_cancelled)


@dataclass(frozen=True, slots=True)
class Trials:
    """Joined result of an item's episodes."""

    parts: dict[str, float]
    value: dict[str, Any]
    cached: bool
    failure: ItemError | None = None
    """Error of the item if no episode ran."""


def gather(part: str, carried: Sequence[Mapping[str, Any]]) -> Trials:
    """Join the outcomes of an item's trials, in order. `part`: name of the scorer among the item's parts."""
    ran = [each for each in carried if each.get("status") == "ok"]
    errors = [dict(each["error"]) | {"trial": trial} for trial, each in enumerate(carried) if each.get("error")]
    value: dict[str, Any] = {"episodes": [each["value"] for each in ran], "failed": errors}
    if not ran:
        first = errors[0] if errors else {"type": "lost", "message": "No result came with this item."}
        message = first["message"] if len(carried) == 1 else f"None of {len(carried)} episodes ran: {first['message']}"
        return Trials({}, value, False, ItemError(first["type"], message))
    summary = summarise(value["episodes"])
    more = {
        "episodes": summary.episodes,
        "low": summary.low,
        "high": summary.high,
        "mean_steps": summary.mean_steps,
        "mean_inference_ms": summary.mean_inference_ms,
        "max_inference_ms": summary.max_inference_ms,
    }
    parts = {part: summary.success_rate} | {f"{part}.{name}": float(each) for name, each in more.items()}
    return Trials(parts, value, all(each.get("cached") for each in ran) and not errors)
