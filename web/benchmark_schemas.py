"""What goes over the wire of benchmarks."""

from pydantic import Field

from tasks.benchmarks.history import RunState
from tasks.benchmarks.model import Better, Trigger
from web.schemas import Wire


class RunView(Wire):
    id: str
    name: str = Field(description="The set, or the single scenario.")
    state: RunState
    note: str = Field(description="Why it was skipped, or failed.")
    trigger: Trigger
    created_at: float
    started_at: float | None
    ended_at: float | None
    job_id: str | None = Field(description="The run as a job: its progress and events; to cancel it, cancel that.")
    total: int = Field(description="Measurements in all: every case, as often as it is repeated.")
    done: int
    regressions: int
    files: list[str] = Field(description="Of its report, see `/v1/benchmarks/runs/{run_id}/files/{name}`.")


class FigureView(Wire):
    figure: str = Field(description="`<scenario>/<case>/<name>`.")
    basis: str = Field(description="Figures are compared where it is the same: machine, engine and parameters.")
    unit: str
    better: Better
    value: float = Field(description="The median of its repetitions.")
    least: float
    most: float
    usual: float | None = Field(description="The median of the runs before; null while there are too few.")
    low: float | None = Field(description="The band that their noise makes.")
    high: float | None
    is_disturbed: bool = Field(description="Others worked meanwhile: it is no part of the history.")
    is_regression: bool


class RunWithFigures(RunView):
    figures: list[FigureView]


class Runs(Wire):
    runs: list[RunView]


class RunsQuery(Wire):
    name: str | None = Field(None, description="Only runs of this benchmark.")
    limit: int = Field(50, ge=1, le=200)


class BenchmarkView(Wire):
    name: str
    description: str
    scenarios: list[str]
    repetitions: int
    schedule: str | None = Field(description="The crontabs, in UTC, that beat runs it by.")
    next_at: float | None
    last_run: RunView | None


class RegressionView(FigureView):
    run: str
    benchmark: str = Field(description="That the run was of.")


class Benchmarks(Wire):
    benchmarks: list[BenchmarkView]
    regressions: list[RegressionView] = Field(
        description="Figures whose newest run, in the last month, is worse than noise explains."
    )


class PointView(Wire):
    run: str
    at: float
    value: float
    least: float
    most: float
    is_disturbed: bool


class FigureHistory(Wire):
    figure: str
    basis: str = Field(description="Figures are compared where it is the same: machine, engine and parameters.")
    benchmark: str = Field(description="Of its newest run: sets measure some figures with parameters of their own.")
    unit: str
    better: Better
    band: tuple[float, float] | None = Field(description="Of the runs before the newest one.")
    is_regression: bool
    points: list[PointView] = Field(description="Oldest first, as far as they can be compared.")


class Figures(Wire):
    figures: list[FigureHistory]
