"""What a process that measures holds: it runs one case of a scenario, and makes a report of all of them."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from tasks.benchmarks.catalogue import SCENARIOS
from tasks.benchmarks.figures import Figures
from tasks.benchmarks.history import History, Run
from tasks.benchmarks.machine import describe
from tasks.benchmarks.model import BenchmarkItem, BenchmarkSpec, Measured, Outcome
from tasks.benchmarks.report import Report, write
from tasks.benchmarks.stand import Stand
from tasks.benchmarks.summary import summarize
from tasks.connections import explained
from tasks.errors import NoLongerWanted, Permanent
from tasks.jobs.core import JobCore

log = logging.getLogger(__name__)


class Bench:
    """Implements tasks.benchmarks.model.Bench."""

    def __init__(self, core: JobCore) -> None:
        self._core = core

    def measure(self, run: str, item: BenchmarkItem, is_cancelled: Callable[[], bool]) -> Measured:
        scenario = SCENARIOS.get(item.scenario)
        if scenario is None:
            raise Permanent(f"There is no scenario {item.scenario!r} any more.")
        stand = Stand(self._core, run, is_cancelled)
        with explained(self._core.settings.redis_url):  # a Redis that was away is a reason to measure again
            self._require_in_time(run)
            stand.clear()  # of a process that was killed over it
            try:
                measured = scenario.run(stand, scenario.parameters.model_validate(item.parameters))
            finally:
                stand.clear()
        known = {figure.name for figure in scenario.figures}
        key = scenario.figures[0]
        log.info("%s: %.4g %s", item.id, measured.figures[key.name], key.unit)
        return replace(measured, figures={name: value for name, value in measured.figures.items() if name in known})

    def _require_in_time(self, run: str) -> None:
        """Whoever measures may have come long after the run was due, and before anybody looked at it."""
        history = History(self._core.state)
        known = history.get(run)
        began = self._core.store.job(known.job).started_at if known and known.job else None
        if known and began and known.is_late(began):
            history.give_up(known)
            self._core.cancel(known.job)
            raise NoLongerWanted("The run was begun too late.")

    def report(self, spec: BenchmarkSpec, outcomes: Sequence[Outcome]) -> None:
        core, history, figures = self._core, History(self._core.state), Figures(self._core.state)
        now = history.now()
        run = history.get(spec.run) or Run(spec.run, spec.name, spec.trigger, "running", now, total=len(outcomes))
        version = str(cast(dict[str, object], core.state.info("server"))["redis_version"])
        machine = describe(spec.slots, version, spec.gpus)
        cases = summarize(
            outcomes,
            machine.basis,
            lambda figure, basis: figures.earlier(figure, basis, run.id, run.created_at),
        )
        began = core.store.job(run.job).started_at if run.job else None
        started = began or run.created_at  # it may have waited long for somebody to measure it
        report = Report(spec, machine, cases, outcomes, started, now)
        folder, files = write(core.storage, report)
        found = [figure for case in cases for figure in case.figures]
        worse = [figure for figure in found if figure.is_regression]
        figures.add(run.id, run.name, run.created_at, found)
        failed = sum(outcome.measured is None for outcome in outcomes)
        note = f"{failed} of {len(outcomes)} measurements failed." if failed else ""
        history.change(
            run, state="failed" if failed == len(outcomes) else "done", note=note, total=len(outcomes),
            started_at=started, ended_at=now, folder=folder, files=tuple(files), regressions=len(worse),
        )  # fmt: skip
        for figure in worse:
            log.warning("%s is %.4g %s, usually %.4g", figure.figure, figure.value, figure.unit, figure.usual)
