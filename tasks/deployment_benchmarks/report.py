"""Writes the report of a run into a folder of the storage.

Files: `performance_report.md`, `summary.txt`, `results.json`, and a log and a plot for each scenario.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from tasks.deployment_benchmarks.catalogue import SCENARIOS
from tasks.deployment_benchmarks.figure_history import FigureOfRun
from tasks.deployment_benchmarks.model import BenchmarkSpec, Outcome
from tasks.deployment_benchmarks.plots import plot
from tasks.deployment_benchmarks.summary import CaseOfRun
from tasks.jobs.state.storage import Storage
from tasks.measurement.machine import Machine
from tasks.measurement.spread import format_number

#: Folder of the reports in the storage.
FOLDER = "benchmarks"
#: Healthy range of the sample queue's fill level: below it the trainer waits for samples, above it samples become
#: stale.
HEALTHY = (0.5, 0.8)


@dataclass(frozen=True, slots=True)
class Report:
    """Contents of a report."""

    spec: BenchmarkSpec
    machine: Machine
    cases: Sequence[CaseOfRun]
    outcomes: Sequence[Outcome]
    started_at: float
    ended_at: float

    @property
    def folder(self) -> str:
        """Name of the report's folder: start time and run id, as two runs may start within a second."""
        stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime(self.started_at))
        return f"benchmark_results_{stamp}_{self.spec.run[:6]}"

    @property
    def scenarios(self) -> dict[str, list[CaseOfRun]]:
        found: dict[str, list[CaseOfRun]] = {}
        for case in self.cases:
            found.setdefault(case.scenario, []).append(case)
        return found


def write(storage: Storage, report: Report) -> tuple[str, list[str]]:
    """Write the files. Returns the folder and their names."""
    files: dict[str, bytes] = {}
    for scenario, cases in report.scenarios.items():
        if image := plot(scenario, cases):
            files[f"{scenario}.png"] = image
        files[f"{scenario}.log"] = "".join(f"{line}\n" for line in _log(report, scenario)).encode()
    files = {
        "performance_report.md": as_markdown(report, [name for name in files if name.endswith(".png")]).encode(),
        "summary.txt": "".join(f"{line}\n" for line in summary(report)).encode(),
        "results.json": json.dumps(as_json(report), indent=1).encode(),
        **files,
    }
    for name, body in files.items():
        storage.put(file_path(report.folder, name), body)
    return report.folder, list(files)


def folder_path(folder: str) -> str:
    return f"{FOLDER}/{folder}"


def file_path(folder: str, name: str) -> str:
    return f"{folder_path(folder)}/{name}"


def summary(report: Report) -> Iterator[str]:
    """Yield a line for each figure, error and omitted scenario."""
    for case in report.cases:
        for figure in case.figures:
            mark = "  REGRESSION" if figure.is_regression else "  DISTURBED" if figure.is_disturbed else ""
            yield f"{figure.figure}: {format_number(figure.value)} {figure.unit} ({figure.spread.range()}){mark}"
        for error in case.errors:
            yield f"{case.scenario}/{case.case}: failed: {error}"
    for reason in report.spec.left_out:
        yield f"not measured: {reason}"


def as_json(report: Report) -> dict[str, object]:
    return {
        "run": report.spec.run,
        "benchmark": report.spec.name,
        "trigger": report.spec.trigger,
        "options": report.spec.options.model_dump(mode="json"),
        "started_at": report.started_at,
        "ended_at": report.ended_at,
        "machine": asdict(report.machine),
        "left_out": list(report.spec.left_out),
        "cases": [asdict(case) for case in report.cases],
        "measurements": [
            {
                "id": outcome.item.id,
                "error": outcome.error or None,
                "measured": asdict(outcome.measured) if outcome.measured else None,
            }
            for outcome in report.outcomes
        ],
    }


def _log(report: Report, scenario: str) -> Iterator[str]:
    for outcome in report.outcomes:
        if outcome.item.scenario != scenario:
            continue
        yield f"== {outcome.item.case}, repetition {outcome.item.repetition + 1}"
        if outcome.measured is None:
            yield f"failed: {outcome.error}"
            continue
        yield from outcome.measured.log
        if outcome.measured.disturbed:
            yield f"disturbed: {outcome.measured.disturbed}"
        yield ", ".join(f"{name} {format_number(value)}" for name, value in outcome.measured.figures.items())


def as_markdown(report: Report, images: Sequence[str]) -> str:
    return "\n".join(_markdown(report, images)) + "\n"


def _markdown(report: Report, images: Sequence[str]) -> Iterator[str]:
    machine, took_s = report.machine, report.ended_at - report.started_at
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.started_at))
    yield f"# Benchmark `{report.spec.name}`, {started}"
    yield ""
    yield f"{len(report.outcomes)} measurements of {len(report.cases)} cases in {took_s / 60:.1f} minutes."
    yield "Each figure is the median of its repetitions, with minimum and maximum in brackets."
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| machine | {machine.hardware} |"
    yield f"| device slots | {len(machine.slots)}: {', '.join(machine.slots) or 'none'} |"
    gpus = ", ".join(machine.gpus) or "none: device slots are CPU slots, without GPU figures"
    yield f"| GPUs | {gpus} |"
    yield f"| versions | {machine.versions_text} |"
    yield f"| commit | {machine.commit} |"
    yield f"| run | {report.spec.run}, trigger: {report.spec.trigger} |"
    yield ""
    yield from _regressions(report)
    for scenario, cases in report.scenarios.items():
        yield from _scenario(scenario, cases, images)
    if report.spec.left_out:
        yield "## Not measured"
        yield ""
        yield from (f"- {reason}" for reason in report.spec.left_out)
        yield ""


def _regressions(report: Report) -> Iterator[str]:
    figures = [figure for case in report.cases for figure in case.figures]
    found = [figure for figure in figures if figure.is_regression]
    yield "## Regressions"
    yield ""
    if found:
        yield "| figure | now | usual | band of earlier runs |"
        yield "|---|---|---|---|"
        for each in found:
            low, high = (format_number(value) for value in (each.low or 0.0, each.high or 0.0))
            now = f"{format_number(each.value)} {each.unit} ({each.spread.range()})"
            yield f"| {each.figure} | {now} | {format_number(each.usual or 0.0)} | {low} to {high} |"
    elif any(figure.usual is not None for figure in figures):
        yield "None: no figure is worse than the noise of earlier runs explains."
    else:
        yield "No comparison yet: a figure is compared after five earlier runs on the same machine."
    yield ""


def _scenario(scenario: str, cases: Sequence[CaseOfRun], images: Sequence[str]) -> Iterator[str]:
    yield f"## {scenario}"
    yield ""
    if scenario in SCENARIOS:
        yield SCENARIOS[scenario].description
        yield ""
    yield from (f"- engine: {engine}" for engine in dict.fromkeys(case.engine for case in cases if case.engine))
    for case in cases:
        yield from (f"- {case.case}: failed: {error}" for error in case.errors)
        yield from (f"- {case.case}: disturbed: {reason}; excluded from the history" for reason in case.disturbed)
    yield ""
    columns = list(dict.fromkeys(_name(figure) for case in cases for figure in case.figures))
    units = {_name(figure): figure.unit for case in cases for figure in case.figures}
    if columns:
        yield f"| case | {' | '.join(f'{name} ({units[name]})' for name in columns)} |"
        yield f"|---|{'---|' * len(columns)}"
        for case in cases:
            found = {_name(figure): figure for figure in case.figures}
            cells = (_cell(found.get(name)) for name in columns)
            yield f"| {case.case} | {' | '.join(cells)} |"
        yield ""
    yield from _queues(cases)
    yield "Parameters of the cases:"
    yield ""
    yield from (f"- {case.case}: `{json.dumps(case.parameters)}`" for case in cases)
    yield ""
    if f"{scenario}.png" in images:
        yield f"![{scenario}]({scenario}.png)"
        yield ""


def _queues(cases: Sequence[CaseOfRun]) -> Iterator[str]:
    """Yield the cases whose sample queue has a healthy fill level."""
    found = {
        case.case: figure.value for case in cases for figure in case.figures if _name(figure) == "queue_utilisation"
    }
    if found:
        low, high = HEALTHY
        healthy = [case for case, value in found.items() if low <= value <= high]
        yield f"Sample queues with a healthy fill level ({low:.0%} to {high:.0%}): {', '.join(healthy) or 'none'}."
        yield ""


def _cell(figure: FigureOfRun | None) -> str:
    return f"{format_number(figure.value)} ({figure.spread.range()})" if figure else ""


def _name(figure: FigureOfRun) -> str:
    return figure.figure.rpartition("/")[2]
