"""Request schema of simulated jobs: the validated spec and its items. docs/simulated.md shows it in use."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator


class SimulatedStage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z_]{1,30}$")
    pool: Literal["device", "api", "cpu"] = "cpu"
    grouped: bool = False


class SimulatedSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    cost_s: float = Field(0.0, ge=0, le=3600, description="Seconds that each item takes.")
    batch_cost_s: float = Field(
        0.0, ge=0, le=3600, description="Seconds that each batch takes, independent of its number of items."
    )
    batch_items: int = Field(500, ge=1, le=500, description="Maximum items of a batch.")
    streams: bool = Field(
        False,
        description="Whether the engine runs up to `batch_items` items concurrently, and replaces finished items.",
    )
    failure_rate: float = Field(0.0, ge=0, le=1, description="Share of items that fail, chosen by `seed`.")
    crash_rate: float = Field(0.0, ge=0, le=1, description="Share of items that kill their worker, chosen by `seed`.")
    result_bytes: int = Field(0, ge=0, le=10_000_000, description="Size of each item's value.")
    seed: int = 0
    cacheable: bool = Field(False, description="Whether requests are hashed, and their answers cached and shared.")
    timeout_s: float = Field(
        300.0, gt=0, description="Timeout of a batch in seconds, after which its worker counts as hung."
    )
    stages: tuple[SimulatedStage, ...] = Field((SimulatedStage(name="run", pool="device"),), min_length=1)
    trials: int = Field(
        1, ge=1, le=1000, description="Number of runs of each item; above 1, the last stage must be grouped."
    )

    @model_validator(mode="after")
    def _makes_one_of_several(self) -> Self:
        if self.trials > 1 and not self.stages[-1].grouped:
            raise ValueError("`trials`: with several trials, the last stage must be grouped, in order to join them")
        return self


class SimulatedItem(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None = None
    group_id: str | None = None
    x: JsonValue = None
    cost_s: float | None = Field(None, ge=0, le=3600, description="Seconds that this item takes; default: the spec's.")
    fail: bool = False
    fail_times: int = Field(0, ge=0, description="Number of first attempts that fail with a retryable error.")
    crash: bool = Field(False, description="Whether the item kills its worker process, at every attempt.")
    hang: Literal["", "sleep", "interpreter"] = Field(
        "", description="Hang without end: `sleep`, or `interpreter` (holds the interpreter lock)."
    )
