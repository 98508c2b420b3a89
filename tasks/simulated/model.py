"""What a simulated job may ask for. docs/simulated.md shows it in use."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator


class SimulatedStage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z_]{1,30}$")
    pool: Literal["device", "api", "cpu"] = "cpu"
    grouped: bool = False


class SimulatedSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    cost_s: float = Field(0.0, ge=0, le=3600, description="Seconds each item takes.")
    batch_cost_s: float = Field(0.0, ge=0, le=3600, description="Seconds each batch takes, however many items it has.")
    batch_items: int = Field(500, ge=1, le=500, description="Items of a batch at most.")
    streams: bool = Field(
        False, description="Whether the engine runs `batch_items` side by side and takes others as some are done."
    )
    failure_rate: float = Field(0.0, ge=0, le=1, description="Share of items that fail, chosen by `seed`.")
    crash_rate: float = Field(0.0, ge=0, le=1, description="Share of items that kill their worker, chosen by `seed`.")
    result_bytes: int = Field(0, ge=0, le=10_000_000, description="Size of each item's value.")
    seed: int = 0
    cacheable: bool = Field(False, description="Whether answers are hashed, cached and shared.")
    timeout_s: float = Field(300.0, gt=0, description="Seconds a batch may take before its worker counts as hung.")
    stages: tuple[SimulatedStage, ...] = Field((SimulatedStage(name="run", pool="device"),), min_length=1)
    trials: int = Field(1, ge=1, le=1000, description="Times each item is run; the last stage must be grouped then.")

    @model_validator(mode="after")
    def _makes_one_of_several(self) -> Self:
        if self.trials > 1 and not self.stages[-1].grouped:
            raise ValueError("`trials`: the last stage makes one outcome of them, and must be grouped")
        return self


class SimulatedItem(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None = None
    group_id: str | None = None
    x: JsonValue = None
    cost_s: float | None = Field(None, ge=0, le=3600, description="Instead of the spec's.")
    fail: bool = False
    fail_times: int = Field(0, ge=0, description="Attempts that fail in a way that may pass.")
    crash: bool = Field(False, description="Kill the worker process, every time.")
    hang: Literal["", "sleep", "interpreter"] = Field(
        "", description="Never return: asleep, or holding the interpreter."
    )
