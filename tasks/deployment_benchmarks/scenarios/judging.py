"""Scenarios `judge_throughput` and `cached_judge`: judge throughput with new items and with cached items."""

import time
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.deployment_benchmarks.deployment import Deployment
from tasks.deployment_benchmarks.latency_figures import LATENCIES, latencies
from tasks.deployment_benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.deployment_benchmarks.scenarios.scenario import Capabilities, ScenarioUnavailable
from tasks.measurement.timed_job import TimedJob

#: API profile of the built-in development API, whose verdicts are meaningless.
DEVELOPMENT = "development"
#: Seconds to wait until API workers have reported a job's last calls, and seconds between two polls.
REPORT_S, POLL_S = 2.0, 0.02


class JudgeParameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    items: int = Field(ge=1, le=10_000, description="Number of different items.")
    profile: str = DEVELOPMENT

    @property
    def engine(self) -> str:
        if self.profile == DEVELOPMENT:
            return "development API (simulated)"
        return f"API profile {self.profile} (real)"


def _cases(capabilities: Capabilities, options: RunOptions, items: int) -> list[Case]:
    if options.profile not in capabilities.profiles:
        known = ", ".join(capabilities.profiles) or "none"
        raise ScenarioUnavailable(f"unknown API profile {options.profile!r}; configured profiles: {known}")
    return [Case(f"{items}_items", {"items": items, "profile": options.profile})]


def _judge(deployment: Deployment, parameters: JudgeParameters, salt: str, cache: str) -> tuple[TimedJob, int]:
    """Run a judge job. Returns it, and the number of its API calls."""
    items: list[dict[str, Any]] = [
        {"prompt": f"How many are there? ({salt})", "response": f"There are {n}.", "reference": str(n)}
        for n in range(parameters.items)
    ]
    ran = deployment.run_job("judge", items, spec={"profile": parameters.profile, "mode": "reference"}, cache=cache)
    calls = _calls(deployment, ran)
    deployment.add_log(
        f"{parameters.items} items, cache {cache}: {ran.seconds:.3f} s, {ran.job.cached} cached, {calls} calls"
    )
    return ran, calls


def _calls(deployment: Deployment, ran: TimedJob) -> int:
    """Return the job's number of API calls; workers report the last calls shortly after its end."""
    until = time.monotonic() + REPORT_S
    while True:
        usage = deployment.core.store.job(ran.job.id).usage
        calls = usage.calls if usage else 0
        if calls >= ran.job.ok - ran.job.cached or time.monotonic() > until:
            return calls
        time.sleep(POLL_S)


class JudgeThroughput:
    name = "judge_throughput"
    description = "Verdicts per second on items that are not in the cache."
    parameters = JudgeParameters
    figures: Sequence[Figure] = (
        Figure("items_s", "items/s", "higher"),
        *LATENCIES,
        Figure("calls_per_item", "calls", "lower"),
        Figure("memory_mb", "MB"),
    )

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:
        return _cases(capabilities, options, 400 if size == "quick" else 4000)

    def run(self, deployment: Deployment, parameters: JudgeParameters) -> Measured:
        with deployment.observed() as observation:
            ran, calls = _judge(deployment, parameters, deployment.salt, "off")
        figures = {"items_s": parameters.items / ran.seconds, "calls_per_item": calls / parameters.items}
        figures |= latencies(ran.rows) | observation.figures()
        return Measured(figures, parameters.engine, deployment.log, ran.seconds, observation.disturbed)


class CachedJudge:
    name = "cached_judge"
    description = "The same items twice: the cache answers the second job."
    parameters = JudgeParameters
    figures: Sequence[Figure] = (
        Figure("cached_items_s", "items/s", "higher"),
        Figure("times_faster", "times"),
        Figure("hit_ratio", "share", "higher"),
        Figure("calls", "calls", "lower"),
    )

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:
        return _cases(capabilities, options, 400 if size == "quick" else 4000)

    def run(self, deployment: Deployment, parameters: JudgeParameters) -> Measured:
        salt = deployment.salt
        with deployment.observed() as observation:
            (first, _), (second, calls) = (_judge(deployment, parameters, salt, "use") for _ in range(2))
        figures = {
            "cached_items_s": parameters.items / second.seconds,
            "times_faster": first.seconds / second.seconds,
            "hit_ratio": second.job.cached / parameters.items,
            "calls": float(calls),
        }
        seconds = first.seconds + second.seconds
        return Measured(figures, parameters.engine, deployment.log, seconds, observation.disturbed)
