"""Writes the tables of docs/performance.md from the results of `python -m bench`; the text around them is kept."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.processes.supervised_program import ENDED
from bench.report.figures import is_met
from tasks.measurement.machine import Machine
from tasks.measurement.spread import Spread, format_number

#: Parts whose programs write a report of their own.
PEERS, BENCHMARK = "peers", "benchmark"


@dataclass(frozen=True, slots=True)
class Line:
    """A measured figure with its target."""

    name: str
    value: float
    least: float
    most: float
    target: str

    @property
    def is_met(self) -> bool:
        return is_met(self.value, self.target)

    @property
    def verdict(self) -> str:
        return "" if self.target == "none" else "met" if self.is_met else "**missed**"

    @property
    def range(self) -> str:
        return f"{self.least:.2f} to {self.most:.2f}" if self.least < self.most else ""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a part: exit code, duration and figures."""

    name: str
    code: int
    took_s: float
    lines: Sequence[Line]
    notes: Sequence[str] = ()
    """Details of the figures, such as the two sides of a ratio."""
    last: str = ""
    """Last line of output, if the part failed."""

    @property
    def failure(self) -> str:
        how = (
            f"exceeded its time limit after {_time(self.took_s)}"
            if self.code == ENDED
            else f"failed (exit {self.code})"
        )
        return f"{self.name} {how}: {self.last}" if self.code else ""


def summary(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines that end a run: the number of met targets, missed targets and failed parts."""
    lines = [line for result in results for line in result.lines if line.target != "none"]
    met = sum(line.is_met for line in lines)
    yield f"{met} of {len(lines)} targets met, in {_time(sum(result.took_s for result in results))}"
    yield from (f"missed: {line.name}: {line.value:.2f}, target {line.target}" for line in lines if not line.is_met)
    yield from (result.failure for result in results if result.code)


def write(page: Path, result: Result, folder: Path, machine: Machine) -> None:
    """Replace the part's table between its marks, and the line about the machine; keep the rest of the page."""
    about = f"{machine.hardware}; {', '.join(machine.gpus) or 'no GPU'}. {machine.versions_text}."
    text = _between(page.read_text(), "machine", about)
    when = f"{_time(result.took_s)} on {time.strftime('%Y-%m-%d', time.gmtime())}, commit {machine.commit}"
    lines = [f"`make bench ARGS={result.name}`, {when}.", *_failure(result), "", *_tables(result, folder)]
    page.write_text(_between(text, result.name, "\n".join(lines).strip()))


def _between(text: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    assert begin in text, f"docs/performance.md lacks the mark {begin}"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"


def _failure(result: Result) -> Iterator[str]:
    if result.code:
        kept = "The table has the figures measured before." if result.lines else ""
        yield f"**{result.failure.replace('|', '/')}** {kept}".strip()


def _tables(result: Result, folder: Path) -> Iterator[str]:
    if result.lines:
        yield "| figure | measured | range | target | |"
        yield "|---|---|---|---|---|"
    for line in result.lines:
        yield f"| {line.name} | {line.value:.2f} | {line.range} | {line.target} | {line.verdict} |"
    if result.notes:
        yield ""
    yield from (f"- {note}" for note in result.notes)
    if result.name == PEERS and (report := folder / "peers.md").exists():
        yield report.read_text().strip()
    if result.name == BENCHMARK and (report := folder / "quick" / "results.json").exists():
        yield from _benchmark(json.loads(report.read_text()))


def _benchmark(results: dict[str, object]) -> Iterator[str]:
    """Yield a table with the key figure of every case."""
    cases = results["cases"]
    assert isinstance(cases, list)
    yield "| scenario | case | engine | key figure | range |"
    yield "|---|---|---|---|---|"
    for case in cases:
        for figure in case["figures"][:1]:
            name = figure["figure"].rpartition("/")[2]
            value = f"{name} {format_number(figure['value'], 4)} {figure['unit']}"
            spread = Spread(figure["value"], figure["least"], figure["most"])
            yield f"| {case['scenario']} | {case['case']} | {case['engine']} | {value} | {spread.range(4)} |"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
