"""Rule scoring: how many responses a second the CPU workers score."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from tasks.benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.benchmarks.percentiles import LATENCIES, latencies
from tasks.benchmarks.scenario import Place
from tasks.benchmarks.stand import MeasurementFailed, Stand


class ScoreParameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    items: int = Field(ge=1, le=10_000)
    scorer: str


class RuleScoring:
    name = "rule_scoring"
    description = "Responses scored a second by rules on CPU workers."
    parameters = ScoreParameters
    figures: Sequence[Figure] = (Figure("items_s", "items/s", "higher"), *LATENCIES, Figure("memory_mb", "MB"))

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:  # noqa: ARG002  # CPU workers are everywhere
        few, many = (500, 5000) if size == "quick" else (10_000, 10_000)
        return [
            Case("numeric_match", {"items": many, "scorer": "numeric_match"}),
            Case("math_equal", {"items": few, "scorer": "math_equal"}),
        ]

    def run(self, stand: Stand, parameters: ScoreParameters) -> Measured:
        items = [
            {"response": f"Half of {2 * n} is {n}. The answer is {n + n % 2}.", "reference": str(n)}
            for n in range(parameters.items)
        ]
        with stand.observed() as observation:
            ran = stand.run("score", items, spec={"scorers": [{"name": parameters.scorer}]}, cache="off")
        stand.say(f"{parameters.items} items by {parameters.scorer}: {ran.seconds:.3f} s")
        if any(row["score"] != float(row["index"] % 2 == 0) for row in ran.rows):
            raise MeasurementFailed(f"{parameters.scorer} scored wrongly.")
        figures = {"items_s": parameters.items / ran.seconds} | latencies(ran.rows) | observation.figures()
        return Measured(figures, f"{parameters.scorer} (real)", stand.log, ran.seconds, observation.disturbed)
