"""Benchmark resource of a worker: measures a single case of a scenario, and writes the report of a run."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from tasks.connections import translate_redis_errors
from tasks.deployment_benchmarks.catalogue import SCENARIOS
from tasks.deployment_benchmarks.deployment import Deployment
from tasks.deployment_benchmarks.figure_history import FigureHistory
from tasks.deployment_benchmarks.model import BenchmarkItem, BenchmarkSpec, Measured, Outcome
from tasks.deployment_benchmarks.report import Report, write
from tasks.deployment_benchmarks.run_history import Run, RunHistory
from tasks.deployment_benchmarks.summary import summarize
from tasks.errors import NoLongerWanted, Permanent
from tasks.jobs.core import JobCore
from tasks.measurement.machine import describe

log = logging.getLogger(__name__)


class Bench:
    """Implements tasks.deployment_benchmarks.model.Bench."""

    def __init__(self, core: JobCore) -> None:
        self._core = core

    def measure(self, run: str, item: BenchmarkItem, is_cancelled: Callable[[], bool]) -> Measured:
        scenario = SCENARIOS.get(item.scenario)
        if scenario is None:
            raise Permanent(f"The scenario {item.scenario!r} no longer exists.")
        deployment = Deployment(self._core, run, is_cancelled)
        with translate_redis_errors(self._core.settings.redis_url):  # an outage of Redis is retryable
            self._require_in_time(run)
            deployment.cancel_jobs()  # of an earlier process that was killed during this case
            try:
                measured = scenario.run(deployment, scenario.parameters.model_validate(item.parameters))
            finally:
                deployment.cancel_jobs()
        known = {figure.name for figure in scenario.figures}
        key = scenario.figures[0]
        log.info("%s: %.4g %s", item.id, measured.figures[key.name], key.unit)
        return replace(measured, figures={name: value for name, value in measured.figures.items() if name in known})

    def _require_in_time(self, run: str) -> None:
        """Abandon a run that a worker started long after its due time, if no request has noticed that yet."""
        history = RunHistory(self._core.state)
        known = history.get(run)
        started_at = self._core.store.job(known.job).started_at if known and known.job else None
        if known and started_at and known.is_late(started_at):
            history.give_up(known)
            self._core.cancel(known.job)
            raise NoLongerWanted("The run was started too late.")

    def report(self, spec: BenchmarkSpec, outcomes: Sequence[Outcome]) -> None:
        core, history, figures = self._core, RunHistory(self._core.state), FigureHistory(self._core.state)
        now = history.now()
        run = history.get(spec.run) or Run(spec.run, spec.name, spec.trigger, "running", now, total=len(outcomes))
        version = str(cast(dict[str, object], core.state.info("server"))["redis_version"])
        machine = describe(spec.slots, version, spec.gpus)
        cases = summarize(
            outcomes,
            machine.basis,
            lambda figure, basis: figures.earlier(figure, basis, run.id, run.created_at),
        )
        started_at = core.store.job(run.job).started_at if run.job else None
        started = started_at or run.created_at  # the job may have waited long for a worker
        report = Report(spec, machine, cases, outcomes, started, now)
        folder, files = write(core.storage, report)
        found = [figure for case in cases for figure in case.figures]
        worse = [figure for figure in found if figure.is_regression]
        figures.add(run.id, run.name, run.created_at, found)
        failed = sum(outcome.measured is None for outcome in outcomes)
        note = f"{failed} of {len(outcomes)} measurements failed." if failed else ""
        history.change(
            run,
            state="failed" if failed == len(outcomes) else "done",
            note=note,
            total=len(outcomes),
            started_at=started,
            ended_at=now,
            folder=folder,
            files=tuple(files),
            regressions=len(worse),
        )
        for figure in worse:
            log.warning("%s is %.4g %s, usually %.4g", figure.figure, figure.value, figure.unit, figure.usual)
