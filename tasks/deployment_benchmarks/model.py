"""Types of a benchmark run. An item of the job is a single measurement of a scenario's case."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tasks.errors import Permanent
from tasks.measurement.noise import Better
from tasks.runtime import Resource

if TYPE_CHECKING:  # its module imports every scenario
    from tasks.deployment_benchmarks.runs import Runs

Trigger = Literal["schedule", "request"]
Size = Literal["quick", "full"]

RUN_ID = re.compile(r"^[0-9a-f]{32}$")

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def is_measured_with(kind: str, metadata: Mapping[str, Any]) -> bool:
    """Return whether a benchmark run submitted this job in order to measure it; the run itself does not count.

    Users may have a metadata field `benchmark` too, so its value must have the form of a run's id."""
    run = metadata.get("benchmark")
    return kind != "benchmark" and isinstance(run, str) and RUN_ID.fullmatch(run) is not None


class RunOptions(BaseModel):
    """Options of a requested run."""

    model_config = _STRICT

    repetitions: int | None = Field(None, ge=1, le=50, description="Number of measurements of each case.")
    size: Size | None = Field(None, description="Size of the cases of a single scenario; `quick` by default.")
    profile: str = Field(
        "development",
        max_length=100,
        description="API profile of the judge. Calls of a profile other than `development` may cost money.",
    )
    model: str = Field("", max_length=500, description="Model that generates in rollouts; empty: a simulated engine.")


class BenchmarkSpec(BaseModel):
    model_config = _STRICT

    run: str = Field(pattern=RUN_ID.pattern, description="Id of the run, set by the server.")
    name: str = Field(description="Name of the set, or of a single scenario.")
    trigger: Trigger = "request"
    options: RunOptions = RunOptions()
    left_out: tuple[str, ...] = Field((), description="Scenarios that this deployment cannot run, with the reason.")
    slots: tuple[str, ...] = Field(
        (), description="Queues of the device slots that were registered when the run was created."
    )
    gpus: tuple[str, ...] = Field((), description="Product names of their GPUs, each GPU once.")


class BenchmarkItem(BaseModel):
    model_config = _STRICT

    id: str
    group_id: Literal["run"] = "run"
    """Items of a run form a single group: its report is written after the last measurement."""
    scenario: str
    case: str
    repetition: int = Field(ge=0)
    parameters: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a scenario measures. A scenario's first figure is its key figure."""

    name: str
    unit: str
    better: Better = "neither"


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a single measurement of a case."""

    figures: Mapping[str, float]
    engine: str
    """Name of the engine, and whether it is real or simulated."""
    log: Sequence[str] = ()
    seconds: float = 0.0
    disturbed: str = ""
    """Reason why the measurement is not comparable, e.g. concurrent jobs. It is reported, but kept out of the
    history."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An item of a run with its measurement, or with the error that prevented it."""

    item: BenchmarkItem
    measured: Measured | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario with fixed parameters."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Bench(Protocol):
    """Resource of a benchmark worker: measures cases and writes reports."""

    def measure(self, run: str, item: BenchmarkItem, is_cancelled: Callable[[], bool]) -> Measured:
        """Measure the case. Raises AssayError if that fails."""

    def report(self, spec: BenchmarkSpec, outcomes: Sequence[Outcome]) -> None:
        """Write the run's report and add its figures to the history. Idempotent."""


def _no_bench(worker: str) -> Permanent:
    return Permanent(f"{worker} is not a benchmark worker: it cannot run measurements.")


BENCH = Resource[Bench]("bench", _no_bench)
"""The measuring worker's access to the system that it measures."""

RUNS: Resource["Runs"] = Resource("benchmark runs")
"""Starts benchmark runs."""
