"""Scenario `inference_shards`: throughput of inference rows on 1, 2, 4, ... and all device slots."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.deployment_benchmarks.deployment import Deployment
from tasks.deployment_benchmarks.latency_figures import LATENCIES, latencies
from tasks.deployment_benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.deployment_benchmarks.scenarios.scenario import Capabilities, ScenarioUnavailable, slot_counts
from tasks.measurement.timed_job import TimedJob

#: Model that `make up` installs, and the number of tokens that it generates for a row.
MODEL, TOKENS = "smollm2", 16


class InferenceParameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    slots: int = Field(ge=1)
    items: int = Field(ge=1, le=10_000)
    model: str = Field("", description="Model; empty: a simulated engine that sleeps.")
    cost_s: float = Field(0.05, ge=0, le=60, description="Seconds that the simulated engine sleeps for an item.")

    @property
    def engine(self) -> str:
        return f"{self.model} (real)" if self.model else f"simulated ({1000 * self.cost_s:g} ms an item)"


class InferenceShards:
    name = "inference_shards"
    description = "Throughput of an inference job on 1, 2, 4, ... and all device slots."
    parameters = InferenceParameters
    figures: Sequence[Figure] = (
        Figure("items_s", "items/s", "higher"),
        *LATENCIES,
        Figure("device_utilisation", "share", "higher"),
        Figure("tokens_s", "tokens/s", "higher"),
        Figure("gpu_utilisation", "share"),
        Figure("gpu_memory_mb", "MB"),
        Figure("memory_mb", "MB"),
    )

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:  # noqa: ARG002
        if not capabilities.slots:
            raise ScenarioUnavailable("no device worker is registered")
        each = 60 if size == "quick" else 400
        cases = [
            Case(f"simulated_{slots}_slots", {"slots": slots, "items": each * slots, "cost_s": 0.05})
            for slots in slot_counts(capabilities.slots)
        ]
        if MODEL in capabilities.models:
            rows = 16 if size == "quick" else 64
            cases += [
                Case(f"{MODEL}_{slots}_slots", {"slots": slots, "items": rows, "model": MODEL})
                for slots in slot_counts(min(capabilities.slots, 8))
            ]
        return cases

    def run(self, deployment: Deployment, parameters: InferenceParameters) -> Measured:
        if parameters.model:  # warm up: each slot loads the model
            self._submit(deployment, parameters, 8 * parameters.slots)
        with deployment.observed(parameters.slots) as observation:
            ran = self._submit(deployment, parameters, parameters.items)
        figures = {"items_s": parameters.items / ran.seconds}
        if parameters.model:
            tokens = sum(int(row["value"]["tokens"]["completion"]) for row in ran.rows)
            figures["tokens_s"] = tokens / ran.seconds
        figures |= latencies(ran.rows) | observation.figures()
        deployment.add_log(f"{parameters.items} rows on {parameters.slots} slots: {ran.seconds:.3f} s")
        return Measured(figures, parameters.engine, deployment.log, ran.seconds, observation.disturbed)

    def _submit(self, deployment: Deployment, parameters: InferenceParameters, number: int) -> TimedJob:
        if not parameters.model:
            spec: dict[str, Any] = {"cost_s": parameters.cost_s, "batch_items": 2}
            items: list[dict[str, Any]] = [{"x": x} for x in range(number)]
            return deployment.run_job("simulated", items, spec=spec, cache="off", slots=parameters.slots)
        spec = {"model": parameters.model, "sampling": {"max_new_tokens": TOKENS}}
        items = [{"query": f"What is {n} plus {n % 7}? " + "Think of the carry. " * (n % 5)} for n in range(number)]
        return deployment.run_job("inference", items, spec=spec, cache="off", slots=parameters.slots)
