"""Scenario `policy_scoring`: throughput of episodes on 1, 2, 4, ... and all policy servers."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from tasks.deployment_benchmarks.deployment import Deployment
from tasks.deployment_benchmarks.latency_figures import LATENCIES, latencies
from tasks.deployment_benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.deployment_benchmarks.scenarios.scenario import Capabilities, ScenarioUnavailable, slot_counts

#: Targets of the light environment. Some instructions fit the task and some do not: episodes are short and long.
TARGETS = ("red", "green", "blue", "yellow")


class PolicyParameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    servers: int = Field(ge=1)
    episodes: int = Field(ge=1, le=10_000)
    policy: str = "development policy (simulated)"


class PolicyScoring:
    name = "policy_scoring"
    description = "Episodes of the light environment on 1, 2, 4, ... and all policy servers."
    parameters = PolicyParameters
    figures: Sequence[Figure] = (
        Figure("inferences_s", "inferences/s", "higher"),
        Figure("episodes_s", "episodes/s", "higher"),
        *LATENCIES,
        Figure("device_utilisation", "share", "higher"),
        Figure("gpu_utilisation", "share"),
        Figure("gpu_memory_mb", "MB"),
        Figure("memory_mb", "MB"),
    )

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:  # noqa: ARG002
        if not capabilities.policy_servers:
            raise ScenarioUnavailable("no policy server is connected")
        # The development policy answers immediately; a real policy takes seconds for an episode.
        each = (24 if size == "quick" else 120) * (1 if capabilities.policy_is_real else 20)
        policy = (
            "policy servers of this system (real)" if capabilities.policy_is_real else "development policy (simulated)"
        )
        return [
            Case(f"{servers}_servers", {"servers": servers, "episodes": each * servers, "policy": policy})
            for servers in slot_counts(capabilities.policy_servers)
        ]

    def run(self, deployment: Deployment, parameters: PolicyParameters) -> Measured:
        items = [
            {
                "response": f"reach the {TARGETS[n % 3]} target" if n // 4 % 2 else "",
                "task": {"task_id": n % 4, "seed": n},
            }
            for n in range(parameters.episodes)
        ]
        with deployment.observed(parameters.servers, with_policies=True) as observation:
            ran = deployment.run_job(
                "score", items, spec={"scorers": [{"name": "policy"}]}, cache="off", slots=parameters.servers
            )
        inferences = sum(int(each["inferences"]) for row in ran.rows for each in row["value"]["episodes"])
        done = f"{parameters.episodes} episodes, {inferences} inferences"
        deployment.add_log(f"{done} on {parameters.servers} servers: {ran.seconds:.3f} s")
        figures = {"inferences_s": inferences / ran.seconds, "episodes_s": parameters.episodes / ran.seconds}
        figures |= latencies(ran.rows) | observation.figures()
        return Measured(figures, parameters.policy, deployment.log, ran.seconds, observation.disturbed)
