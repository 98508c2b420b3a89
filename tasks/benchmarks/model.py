"""What a benchmark run is made of: an item is one case of a scenario, measured once."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Trigger = Literal["schedule", "request"]
Size = Literal["quick", "full"]
Better = Literal["higher", "lower", "neither"]

RUN_ID = re.compile(r"^[0-9a-f]{32}$")

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def is_measured_with(kind: str, metadata: Mapping[str, Any]) -> bool:
    """Whether a job is one of those that a run submits to measure them; the run itself, of kind `benchmark`, is not.
    Others call things of theirs a benchmark, too: only an id of a run counts."""
    run = metadata.get("benchmark")
    return kind != "benchmark" and isinstance(run, str) and RUN_ID.fullmatch(run) is not None


class RunOptions(BaseModel):
    """What whoever asks for a run may choose."""

    model_config = _STRICT

    repetitions: int | None = Field(None, ge=1, le=50, description="Times each case is measured.")
    size: Size | None = Field(None, description="How large the cases of a single scenario are; `quick` by default.")
    profile: str = Field(
        "development", max_length=100, description="The API that judges. Another than the development API may cost."
    )
    model: str = Field(
        "", max_length=500, description="A model that generates in rollouts, instead of a simulated engine."
    )


class BenchmarkSpec(BaseModel):
    model_config = _STRICT

    run: str = Field(pattern=RUN_ID.pattern, description="Written by the server: the run's id.")
    name: str = Field(description="The set, or the single scenario, that is run.")
    trigger: Trigger = "request"
    options: RunOptions = RunOptions()
    left_out: tuple[str, ...] = Field((), description="Scenarios that this system cannot run, with the reason.")
    slots: tuple[str, ...] = Field((), description="Queues of the device slots that were there when it was asked for.")
    gpus: tuple[str, ...] = Field((), description="Their GPUs, each once, by its product.")


class BenchmarkItem(BaseModel):
    model_config = _STRICT

    id: str
    group_id: Literal["run"] = "run"
    """All of a run are one group: its report is written when the last is measured."""
    scenario: str
    case: str
    repetition: int = Field(ge=0)
    parameters: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a scenario measures. The first of a scenario is its key figure."""

    name: str
    unit: str
    better: Better = "neither"


@dataclass(frozen=True, slots=True)
class Measured:
    """What one measurement of a case brought."""

    figures: Mapping[str, float]
    engine: str
    """What did the work, and whether it is real."""
    log: Sequence[str] = ()
    seconds: float = 0.0
    disturbed: str = ""
    """What other work ran meanwhile; such a measurement is told, but is no part of the history."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An item of a run, as its report sees it: measured, or why not."""

    item: BenchmarkItem
    measured: Measured | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Bench(Protocol):
    """What a process that measures holds."""

    def measure(self, run: str, item: BenchmarkItem, is_cancelled: Callable[[], bool]) -> Measured:
        """Raises AssayError when it cannot be measured."""

    def report(self, spec: BenchmarkSpec, outcomes: Sequence[Outcome]) -> None:
        """Write the run's report and add it to the history. Safe to repeat."""
