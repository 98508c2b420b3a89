"""Policy scoring: episodes on one policy server, on two, on all of them."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from tasks.benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.benchmarks.percentiles import LATENCIES, latencies
from tasks.benchmarks.scenario import NotHere, Place, up_to
from tasks.benchmarks.stand import Stand

#: Of the light environment's tasks: instructions that fit and others that do not, so that episodes are short and long.
TARGETS = ("red", "green", "blue", "yellow")


class PolicyParameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    servers: int = Field(ge=1)
    episodes: int = Field(ge=1, le=10_000)
    policy: str = "development policy (simulated)"


class PolicyScoring:
    name = "policy_scoring"
    description = "Episodes of the light environment on one policy server, on two, on all."
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

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:  # noqa: ARG002
        if not place.policy_servers:
            raise NotHere("no policy server is connected")
        # The development policy answers at once; a real one takes seconds for an episode.
        each = (24 if size == "quick" else 120) * (1 if place.policy_is_real else 20)
        policy = "policy servers of this system (real)" if place.policy_is_real else "development policy (simulated)"
        return [
            Case(f"{servers}_servers", {"servers": servers, "episodes": each * servers, "policy": policy})
            for servers in up_to(place.policy_servers)
        ]

    def run(self, stand: Stand, parameters: PolicyParameters) -> Measured:
        items = [
            {
                "response": f"reach the {TARGETS[n % 3]} target" if n // 4 % 2 else "",
                "task": {"task_id": n % 4, "seed": n},
            }
            for n in range(parameters.episodes)
        ]
        with stand.observed(parameters.servers, with_policies=True) as observation:
            ran = stand.run(
                "score", items, spec={"scorers": [{"name": "policy"}]}, cache="off", slots=parameters.servers
            )
        inferences = sum(int(each["inferences"]) for row in ran.rows for each in row["value"]["episodes"])
        done = f"{parameters.episodes} episodes, {inferences} inferences"
        stand.say(f"{done} on {parameters.servers} servers: {ran.seconds:.3f} s")
        figures = {"inferences_s": inferences / ran.seconds, "episodes_s": parameters.episodes / ran.seconds}
        figures |= latencies(ran.rows) | observation.figures()
        return Measured(figures, parameters.policy, stand.log, ran.seconds, observation.disturbed)
