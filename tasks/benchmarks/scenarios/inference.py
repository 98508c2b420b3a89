"""Inference shards: rows on one device slot, on two, on all of them."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.benchmarks.percentiles import LATENCIES, latencies
from tasks.benchmarks.scenario import NotHere, Place, up_to
from tasks.benchmarks.stand import Ran, Stand

#: What `make up` puts into the models' folder, and what is generated with it.
MODEL, TOKENS = "smollm2", 16


class InferenceParameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    slots: int = Field(ge=1)
    items: int = Field(ge=1, le=10_000)
    model: str = Field("", description="Empty: an engine that sleeps.")
    cost_s: float = Field(0.05, ge=0, le=60, description="Of an item, where it sleeps.")

    @property
    def engine(self) -> str:
        return f"{self.model} (real)" if self.model else f"simulated ({1000 * self.cost_s:g} ms an item)"


class InferenceShards:
    name = "inference_shards"
    description = "Rows of an inference job on one device slot, on two, on all."
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

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:  # noqa: ARG002
        if not place.slots:
            raise NotHere("no device worker is there")
        each = 60 if size == "quick" else 400
        cases = [
            Case(f"simulated_{slots}_slots", {"slots": slots, "items": each * slots, "cost_s": 0.05})
            for slots in up_to(place.slots)
        ]
        if MODEL in place.models:
            rows = 16 if size == "quick" else 64
            cases += [
                Case(f"{MODEL}_{slots}_slots", {"slots": slots, "items": rows, "model": MODEL})
                for slots in up_to(min(place.slots, 8))
            ]
        return cases

    def run(self, stand: Stand, parameters: InferenceParameters) -> Measured:
        if parameters.model:  # each slot loads it before it counts
            self._submit(stand, parameters, 8 * parameters.slots)
        with stand.observed(parameters.slots) as observation:
            ran = self._submit(stand, parameters, parameters.items)
        figures = {"items_s": parameters.items / ran.seconds}
        if parameters.model:
            tokens = sum(int(row["value"]["tokens"]["completion"]) for row in ran.rows)
            figures["tokens_s"] = tokens / ran.seconds
        figures |= latencies(ran.rows) | observation.figures()
        stand.say(f"{parameters.items} rows on {parameters.slots} slots: {ran.seconds:.3f} s")
        return Measured(figures, parameters.engine, stand.log, ran.seconds, observation.disturbed)

    def _submit(self, stand: Stand, parameters: InferenceParameters, number: int) -> Ran:
        if not parameters.model:
            spec: dict[str, Any] = {"cost_s": parameters.cost_s, "batch_items": 2}
            items: list[dict[str, Any]] = [{"x": x} for x in range(number)]
            return stand.run("simulated", items, spec=spec, cache="off", slots=parameters.slots)
        spec = {"model": parameters.model, "sampling": {"max_new_tokens": TOKENS}}
        items = [{"query": f"What is {n} plus {n % 7}? " + "Think of the carry. " * (n % 5)} for n in range(number)]
        return stand.run("inference", items, spec=spec, cache="off", slots=parameters.slots)
