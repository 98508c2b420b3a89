"""Job kind `benchmark`: cases are measured one after the other, then one report is made of all of them.

A run is a job like any other: it survives its worker, shows how far it is, and can be cancelled. It has a pool of its
own, so that what it measures never waits for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from tasks.benchmarks.history import History
from tasks.benchmarks.model import BenchmarkItem, BenchmarkSpec, Measured, Outcome
from tasks.errors import InvalidRequest
from tasks.jobs.kinds import Context, Work
from tasks.jobs.model import ItemError, Result, Stage
from tasks.jobs.patience import patiently

MEASURE, REPORT = "measure", "report"
#: Seconds one measurement may take, and a first guess of what it takes.
TIMEOUT_S, COST_S = 1800.0, 10.0


class Benchmark:
    name = "benchmark"
    spec_model = BenchmarkSpec
    item_model = BenchmarkItem

    def __init__(self, history: History) -> None:
        self._history = history

    def check(self, spec: BenchmarkSpec) -> None:
        known = self._history.get(spec.run)
        if known is None or known.job:
            raise InvalidRequest("kind: a benchmark is run by POST /v1/benchmarks/{name}/runs.", field="kind")

    def stages(self, spec: BenchmarkSpec) -> Sequence[Stage]:  # noqa: ARG002  # they are always the same
        return [
            # One at a time over all hosts: two that measure would measure each other.
            Stage(MEASURE, "benchmark", batch_items=1, cost_s=COST_S, timeout_s=TIMEOUT_S, most_out=1),
            Stage(REPORT, "benchmark", grouped=True, timeout_s=TIMEOUT_S),
        ]

    def key(self, spec: BenchmarkSpec, stage: str, item: BenchmarkItem) -> dict[str, Any] | None:  # noqa: ARG002
        """None: a measurement is never answered from a cache."""
        return None

    def labels(self, spec: BenchmarkSpec) -> Mapping[str, str]:  # noqa: ARG002  # nothing is cached
        return {}

    def batch_key(self, spec: BenchmarkSpec) -> str:
        return spec.run

    def advance(self, spec: BenchmarkSpec, stage: str, work: Work[BenchmarkItem], result: Result) -> Result:  # noqa: ARG002
        return replace(result, next=REPORT if stage == MEASURE else "")

    def run(self, context: Context, spec: BenchmarkSpec, batch: Sequence[Work[BenchmarkItem]]) -> Sequence[Result]:
        bench = context.bench()
        if context.stage == MEASURE:
            measured = [bench.measure(spec.run, work.item, context.is_cancelled) for work in batch]
            return [Result(value=_as_value(each)) for each in measured]
        outcomes = [_outcome(work) for work in batch]
        patiently(lambda: bench.report(spec, outcomes))  # a grouped stage is not tried again
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
