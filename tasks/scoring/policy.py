"""Scorer `policy`: a response is an instruction, and what counts is how often a robot policy succeeds under it.

Every trial of an item is an episode on a device that has a policy server; here is which episode that is, and what its
trials make of an item. How episodes are run is `workers/policies`.
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
    """The share of episodes in which a robot policy succeeds with the response as its instruction.

    Each trial is an episode of its own, with the next initial state. An episode that could not run is not an
    unsuccessful one: the score is over those that ran, and an item without any has failed.
    """

    environment: Environment = Field(Reach(), description="Where it acts: `reach`, `gymnasium` or `libero`.")
    trials: Repeats = Field(1, description="Episodes for each item.")
    task_id: Index = Field(0, description="Which task of the environment, where the item does not say.")
    seed: Seed = Field(7, description="Of all chance in the environment, where the item does not say.")
    init_state: Index = Field(0, description="Initial state of the first trial, where the item does not say.")
    replan_steps: ReplanSteps | None = Field(
        None, description="Steps done of each plan; by default what the environment is used to."
    )
    max_steps: int | None = Field(None, ge=1, le=100_000, description="Steps of an episode, if not the task's own.")
    in_flight: int = Field(
        0,
        ge=0,
        le=MOST_IN_FLIGHT,
        description="Episodes of the job at a time at most; 0: as many as keep the servers busy.",
    )
    video: bool = Field(False, description="Whether episodes are filmed; then they are not cached.")


@dataclass(frozen=True, slots=True)
class PolicyScorer:
    """The scorer, as the registry has it beside rules and measures."""

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
    """Where the response says nothing, the item's own instruction stands, and after that the environment's."""
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
    """All that determines an episode, with the policy that runs it; None where that is not known."""
    if served is None or spec.video:
        return None
    return {"policy": dict(served), "episode": spec.model_dump(mode="json")}


def play(episodes: Episodes, feed: Feed[Any], spec_of: Callable[[Work[Any]], EpisodeSpec]) -> None:
    """Episodes of the feed until there are no more, each item's in its turn."""
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
        except StorageUnavailable as error:  # of a video; the others have nothing to do with it
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
    """What the episodes of one item come to."""

    parts: dict[str, float]
    value: dict[str, Any]
    cached: bool
    failure: ItemError | None = None
    """No episode ran."""


def gather(part: str, carried: Sequence[Mapping[str, Any]]) -> Trials:
    """Of the outcomes of its trials, in order. `part` is what the scorer is called among the item's parts."""
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
