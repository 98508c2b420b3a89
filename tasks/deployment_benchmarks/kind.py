"""Job kind `benchmark`: cases are measured one after the other, then one report is made of all of them.

A run is a job like any other: it survives its worker, shows how far it is, and can be cancelled. It has a pool of its
own, so that what it measures never waits for it.
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
#: Seconds one measurement may take, and a first estimate of what it takes.
TIMEOUT_S, COST_S = 1800.0, 10.0


class Benchmark(Kind[BenchmarkSpec, BenchmarkItem]):
    name = "benchmark"
    spec_model = BenchmarkSpec
    item_model = BenchmarkItem
    # Its run is over, and others are measured one at a time.
    retry_refusal = "A benchmark's job is not retried. Run the benchmark again instead."

    def __init__(self, history: RunHistory) -> None:
        self._history = history

    @classmethod
    def create(cls, installation: Installation) -> Self:
        return cls(RunHistory(installation.state))

    def check(self, spec: BenchmarkSpec) -> None:
        known = self._history.get(spec.run)
        if known is None or known.job:
            raise InvalidRequest("kind: a benchmark is run by POST /v1/benchmarks/{name}/runs.", field="kind")

    def stages(self, spec: BenchmarkSpec) -> Sequence[Stage[BenchmarkItem]]:
        return [MeasureStage(spec), ReportStage(spec)]

    def batch_key(self, spec: BenchmarkSpec) -> str:
        return spec.run


class MeasureStage(BatchStage[BenchmarkItem]):
    """Measures one case at a time over all hosts: two measurements at once would measure each other."""

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
    """Writes the report of a run, whose cases are one group."""

    def __init__(self, spec: BenchmarkSpec) -> None:
        super().__init__(REPORT, "benchmark", StageLimits(timeout_s=TIMEOUT_S), grouped=True)
        self._spec = spec

    def run(self, context: Context, batch: Sequence[Work[BenchmarkItem]]) -> Sequence[Result]:
        bench, outcomes = context.get(BENCH), [_outcome(work) for work in batch]
        retry_redis(lambda: bench.report(self._spec, outcomes))  # a grouped stage is not tried again
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
    """What the measurement brought stays what it was."""
    carried = work.carry or {}
    if carried.get("status") == "ok":
        return Result(value=carried["value"])
    error = carried.get("error") or {"type": "lost", "message": "No result came with this case."}
    return Result(error=ItemError(error["type"], error["message"]))
