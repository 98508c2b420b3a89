"""Scenario `rule_scoring`: throughput of rule scorers on CPU workers."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from tasks.deployment_benchmarks.deployment import Deployment
from tasks.deployment_benchmarks.latency_figures import LATENCIES, latencies
from tasks.deployment_benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.deployment_benchmarks.scenarios.scenario import Capabilities
from tasks.measurement.timed_job import MeasurementFailed


class ScoreParameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    items: int = Field(ge=1, le=10_000)
    scorer: str


class RuleScoring:
    name = "rule_scoring"
    description = "Responses per second that CPU workers score by rules."
    parameters = ScoreParameters
    figures: Sequence[Figure] = (Figure("items_s", "items/s", "higher"), *LATENCIES, Figure("memory_mb", "MB"))

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:  # noqa: ARG002  # every deployment has CPU workers
        few, many = (500, 5000) if size == "quick" else (10_000, 10_000)
        return [
            Case("numeric_match", {"items": many, "scorer": "numeric_match"}),
            Case("math_equal", {"items": few, "scorer": "math_equal"}),
        ]

    def run(self, deployment: Deployment, parameters: ScoreParameters) -> Measured:
        items = [
            {"response": f"Half of {2 * n} is {n}. The answer is {n + n % 2}.", "reference": str(n)}
            for n in range(parameters.items)
        ]
        with deployment.observed() as observation:
            ran = deployment.run_job("score", items, spec={"scorers": [{"name": parameters.scorer}]}, cache="off")
        deployment.add_log(f"{parameters.items} items by {parameters.scorer}: {ran.seconds:.3f} s")
        if any(row["score"] != float(row["index"] % 2 == 0) for row in ran.rows):
            raise MeasurementFailed(f"{parameters.scorer} returned wrong scores.")
        figures = {"items_s": parameters.items / ran.seconds} | latencies(ran.rows) | observation.figures()
        return Measured(figures, f"{parameters.scorer} (real)", deployment.log, ran.seconds, observation.disturbed)
