"""Job kind `benchmark`: measures the cases of a run sequentially, then writes a report on the whole run.

A run is an ordinary job: it survives its worker, reports its progress, and can be cancelled. It has a pool of its own,
so that the measured jobs never wait for the run itself.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Self

from tasks.deployment_benchmarks.model import BENCH, BenchmarkItem, BenchmarkSpec, Measured, Outcome
from tasks.deployment_benchmarks.run_history import RunHistory
from tasks.errors import InvalidRequest
from tasks.jobs.execution.retry_redis import retry_redis
from tasks.jobs.kind import Installation, Kind
from tasks.jobs.model import ItemError, Result, StageLimits
from tasks.jobs.stage import BatchStage, Context, Stage, Work

MEASURE, REPORT = "measure", "report"
#: Timeout of a measurement in seconds, and the initial estimate of its duration.
TIMEOUT_S, COST_S = 1800.0, 10.0


class Benchmark(Kind[BenchmarkSpec, BenchmarkItem]):
    name = "benchmark"
    spec_model = BenchmarkSpec
    item_model = BenchmarkItem
    # The job's run has ended, and a retry could overlap a newer run, although runs are measured one at a time.
    retry_refusal = "A benchmark's job is not retried. Run the benchmark again instead."

    def __init__(self, history: RunHistory) -> None:
        self._history = history

    @classmethod
    def create(cls, installation: Installation) -> Self:
        return cls(RunHistory(installation.state))

    def check(self, spec: BenchmarkSpec) -> None:
        known = self._history.get(spec.run)
        if known is None or known.job:
            raise InvalidRequest("kind: start a benchmark by POST /v1/benchmarks/{name}/runs.", field="kind")

    def stages(self, spec: BenchmarkSpec) -> Sequence[Stage[BenchmarkItem]]:
        return [MeasureStage(spec), ReportStage(spec)]

    def batch_key(self, spec: BenchmarkSpec) -> str:
        return spec.run


class MeasureStage(BatchStage[BenchmarkItem]):
    """Measures a single case at a time in the whole cluster: concurrent measurements would measure each other."""

    def __init__(self, spec: BenchmarkSpec) -> None:
        limits = StageLimits(batch_items=1, cost_s=COST_S, timeout_s=TIMEOUT_S, most_out=1)
        super().__init__(MEASURE, "benchmark", limits)
        self._run = spec.run

    def advance(self, work: Work[BenchmarkItem], result: Result) -> Result:  # noqa: ARG002
        return replace(result, next=REPORT)

    def run(self, context: Context, batch: Sequence[Work[BenchmarkItem]]) -> Sequence[Result]:
        bench = context.get(BENCH)
        measured = [bench.measure(self._run, work.item, context.is_cancelled) for work in batch]
        return [Result(value=_as_value(each)) for each in measured]


class ReportStage(BatchStage[BenchmarkItem]):
    """Writes the report of a run; the cases of the run form a group."""

    def __init__(self, spec: BenchmarkSpec) -> None:
        super().__init__(REPORT, "benchmark", StageLimits(timeout_s=TIMEOUT_S), grouped=True)
        self._spec = spec

    def run(self, context: Context, batch: Sequence[Work[BenchmarkItem]]) -> Sequence[Result]:
        bench, outcomes = context.get(BENCH), [_outcome(work) for work in batch]
        retry_redis(lambda: bench.report(self._spec, outcomes))  # a grouped stage is retried for the storage only
        return [_final(work) for work in batch]


def _as_value(measured: Measured) -> Any:
    return asdict(measured)


def _outcome(work: Work[BenchmarkItem]) -> Outcome:
    carried = work.carry or {}
    if carried.get("status") == "ok":
        return Outcome(work.item, Measured(**carried["value"]))
    error = carried.get("error") or {"message": "it was not measured"}
    return Outcome(work.item, None, str(error["message"]))


def _final(work: Work[BenchmarkItem]) -> Result:
    """Return the result of the measurement, unchanged, as the case's final result."""
    carried = work.carry or {}
    if carried.get("status") == "ok":
        return Result(value=carried["value"])
    error = carried.get("error") or {"type": "lost", "message": "No result came with this case."}
    return Result(error=ItemError(error["type"], error["message"]))
