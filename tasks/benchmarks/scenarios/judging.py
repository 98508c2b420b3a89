"""Judging: how many verdicts a second, and what it costs to ask again what was answered before."""

import time
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.benchmarks.percentiles import LATENCIES, latencies
from tasks.benchmarks.scenario import NotHere, Place
from tasks.benchmarks.stand import Ran, Stand

#: The API that comes with Assay: its verdicts mean nothing.
DEVELOPMENT = "development"
#: Seconds that API workers may take to tell of a job's last calls, and between two looks.
TOLD_S, LOOK_S = 2.0, 0.02


class JudgeParameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    items: int = Field(ge=1, le=10_000, description="Different questions.")
    profile: str = DEVELOPMENT

    @property
    def engine(self) -> str:
        if self.profile == DEVELOPMENT:
            return "development API (simulated)"
        return f"API profile {self.profile} (real)"


def _cases(place: Place, options: RunOptions, items: int) -> list[Case]:
    if options.profile not in place.profiles:
        known = ", ".join(place.profiles) or "none"
        raise NotHere(f"there is no API profile {options.profile!r}; profiles are {known}")
    return [Case(f"{items}_items", {"items": items, "profile": options.profile})]


def _judge(stand: Stand, parameters: JudgeParameters, salt: str, cache: str) -> tuple[Ran, int]:
    """The job, and the calls that it took."""
    items: list[dict[str, Any]] = [
        {"prompt": f"How many are there? ({salt})", "response": f"There are {n}.", "reference": str(n)}
        for n in range(parameters.items)
    ]
    ran = stand.run("judge", items, spec={"profile": parameters.profile, "mode": "reference"}, cache=cache)
    calls = _calls(stand, ran)
    stand.say(f"{parameters.items} items, cache {cache}: {ran.seconds:.3f} s, {ran.job.cached} cached, {calls} calls")
    return ran, calls


def _calls(stand: Stand, ran: Ran) -> int:
    """Its last calls are told a moment after its end."""
    until = time.monotonic() + TOLD_S
    while True:
        usage = stand.core.store.job(ran.job.id).usage
        calls = usage.calls if usage else 0
        if calls >= ran.job.ok - ran.job.cached or time.monotonic() > until:
            return calls
        time.sleep(LOOK_S)


class JudgeThroughput:
    name = "judge_throughput"
    description = "Verdicts a second on questions that nobody has asked before."
    parameters = JudgeParameters
    figures: Sequence[Figure] = (
        Figure("items_s", "items/s", "higher"),
        *LATENCIES,
        Figure("calls_per_item", "calls", "lower"),
        Figure("memory_mb", "MB"),
    )

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:
        return _cases(place, options, 400 if size == "quick" else 4000)

    def run(self, stand: Stand, parameters: JudgeParameters) -> Measured:
        with stand.observed() as observation:
            ran, calls = _judge(stand, parameters, stand.salt, "off")
        figures = {"items_s": parameters.items / ran.seconds, "calls_per_item": calls / parameters.items}
        figures |= latencies(ran.rows) | observation.figures()
        return Measured(figures, parameters.engine, stand.log, ran.seconds, observation.disturbed)


class CachedJudge:
    name = "cached_judge"
    description = "The same questions twice: the second time they are answered from the cache."
    parameters = JudgeParameters
    figures: Sequence[Figure] = (
        Figure("cached_items_s", "items/s", "higher"),
        Figure("times_faster", "times"),
        Figure("hit_ratio", "share", "higher"),
        Figure("calls", "calls", "lower"),
    )

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:
        return _cases(place, options, 400 if size == "quick" else 4000)

    def run(self, stand: Stand, parameters: JudgeParameters) -> Measured:
        salt = stand.salt
        with stand.observed() as observation:
            (first, _), (second, calls) = (_judge(stand, parameters, salt, "use") for _ in range(2))
        figures = {
            "cached_items_s": parameters.items / second.seconds,
            "times_faster": first.seconds / second.seconds,
            "hit_ratio": second.job.cached / parameters.items,
            "calls": float(calls),
        }
        seconds = first.seconds + second.seconds
        return Measured(figures, parameters.engine, stand.log, seconds, observation.disturbed)
