"""Query and response models of `/v1/benchmarks`."""

from pydantic import Field

from tasks.deployment_benchmarks.model import Trigger
from tasks.deployment_benchmarks.run_history import RunState
from tasks.measurement.noise import Better
from web.http.schemas import StrictModel


class RunView(StrictModel):
    id: str
    name: str = Field(description="Name of the set, or of the single scenario.")
    state: RunState
    note: str = Field(description="Reason for which it was skipped, or failed.")
    trigger: Trigger
    created_at: float
    started_at: float | None
    ended_at: float | None
    job_id: str | None = Field(
        description="Id of the job of this run, with its progress and events; to cancel the run, cancel the job."
    )
    total: int = Field(description="Number of measurements: every case times its repetitions.")
    done: int
    regressions: int
    files: list[str] = Field(description="Files of its report, see `/v1/benchmarks/runs/{run_id}/files/{name}`.")


class FigureView(StrictModel):
    figure: str = Field(description="`<scenario>/<case>/<name>`.")
    basis: str = Field(description="Machine, engine and parameters: only figures with an equal basis are compared.")
    unit: str
    better: Better
    value: float = Field(description="Median of its repetitions.")
    least: float
    most: float
    usual: float | None = Field(description="Median of the previous runs; null while they are too few.")
    low: float | None = Field(description="Lower bound of the noise band of the previous runs.")
    high: float | None
    is_disturbed: bool = Field(description="Other work ran meanwhile: the value is excluded from the history.")
    is_regression: bool


class RunWithFigures(RunView):
    figures: list[FigureView]


class RunList(StrictModel):
    runs: list[RunView]


class RunsQuery(StrictModel):
    name: str | None = Field(None, description="Only runs of this benchmark.")
    limit: int = Field(50, ge=1, le=200)


class BenchmarkView(StrictModel):
    name: str
    description: str
    scenarios: list[str]
    repetitions: int
    schedule: str | None = Field(description="Its crontab schedules, in UTC.")
    next_at: float | None
    last_run: RunView | None


class RegressionView(FigureView):
    run: str
    benchmark: str = Field(description="Benchmark of the run.")


class BenchmarkList(StrictModel):
    benchmarks: list[BenchmarkView]
    regressions: list[RegressionView] = Field(
        description="Figures with a newest run, in the last month, that is worse than noise explains."
    )


class PointView(StrictModel):
    run: str
    at: float
    value: float
    least: float
    most: float
    is_disturbed: bool


class FigureHistory(StrictModel):
    figure: str
    basis: str = Field(description="Machine, engine and parameters: only figures with an equal basis are compared.")
    benchmark: str = Field(
        description="Benchmark of its newest run: sets measure some figures with parameters of their own."
    )
    unit: str
    better: Better
    band: tuple[float, float] | None = Field(description="Noise band of the runs before the newest.")
    is_regression: bool
    points: list[PointView] = Field(description="Points with the same basis, oldest first.")


class FigureList(StrictModel):
    figures: list[FigureHistory]
