"""Report of the comparison: a Markdown table for people, and a JSON document for programs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from bench.peers.adapters.registry import GENERATORS, JUDGES
from bench.peers.kill import TIMEOUT_S, KillResult
from bench.peers.speed import Speed
from tasks.measurement.machine import Machine, describe, installed
from tasks.measurement.spread import format_number, spread_of

HEAD = (
    "",
    "processes",
    "items/s",
    "single item, p50 / p95 ms",
    "CPU s per 1,000",
    "of Redis",
    "memory MB",
    "calls per question",
    "kill -9 of",
    "lost",
    "repeated",
    "ended",
)
PACKAGES = ("celery", "rq", "dramatiq", "openai", "redis", "torch", "transformers")


@dataclass(slots=True)
class Row:
    """Measurements of a peer, as a row of the table."""

    title: str
    speed: Speed = field(default_factory=Speed)
    kill: KillResult | None = None

    def cells(self) -> list[str]:
        speed, kill = self.speed, self.kill
        cells = [self.title]
        if speed.items_per_s:
            cells += [
                speed.resources,
                _range(speed.items_per_s),
                f"{speed.p50_ms:.0f} / {speed.p95_ms:.0f}" if speed.single_ms else "-",
                _range(speed.cpu_s),
                f"{spread_of(speed.redis_cpu_s).middle:.2g}",
                f"{speed.memory_mb:.0f}",
                f"{spread_of(speed.calls).middle:.2f}",
            ]
        else:
            cells += ["-"] * 7
        if kill:
            end = f"after {kill.after_s:.0f} s" if kill.ended else f"no, timed out after {kill.after_s:.0f} s"
            cells += [kill.killed, f"{kill.lost:,}", f"{kill.repeated:,}", end]
        else:
            cells += ["-"] * 4
        return cells


@dataclass(slots=True)
class Report:
    """Contents of the report; it is rewritten after each measurement."""

    file: Path | None = None
    """Path of the report: its suffix is replaced by `.md` and `.json`."""
    conditions: list[str] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Reasons of the peers that were not measured."""
    failed: list[str] = field(default_factory=list)
    """Failures, each with the name of its peer."""

    def as_markdown(self) -> str:
        lines = [_line(HEAD), _line(["---"] * len(HEAD)), *(_line(row.cells()) for row in self.rows.values()), ""]
        lines += [f"**Failed:** {failure}." for failure in self.failed]
        lines += [f"Not measured: {name} ({reason})." for name, reason in self.skipped.items()]
        lines += [f"{condition}." for condition in self.conditions]
        if agreement := self._agreement():
            lines.append(agreement)
        lines += [describe_machine(), ""]
        for group in (JUDGES, GENERATORS):
            lines += advantages({name: row for name, row in self.rows.items() if name in group})
        return "\n".join(lines)

    def _agreement(self) -> str:
        """Compare the answers of the inference peers with those of a `generate` call for each row."""
        measured = {name: row.speed.answers for name, row in self.rows.items() if name in GENERATORS}
        theirs = measured.pop("one-by-one", None)
        counts = []
        for name, ours in measured.items() if theirs else ():
            both = [(answers, (theirs or {})[first]) for first, answers in ours.items() if first in (theirs or {})]
            pairs = [pair for answers in both for pair in zip(*answers, strict=True)]
            counts.append(f"{GENERATORS[name].title} {sum(a == b for a, b in pairs)} of {len(pairs)}")
        return f"Answers identical to those of row-by-row generation: {', '.join(counts)}." if counts else ""

    def as_json(self) -> str:
        rows = {name: asdict(row) for name, row in self.rows.items()}
        for row in rows.values():
            row["speed"].pop("answers")
        document = {"machine": asdict(machine()), "conditions": self.conditions, "rows": rows}
        document |= {"skipped": self.skipped, "failed": self.failed}
        return json.dumps(document, indent=1)

    def write(self) -> None:
        if self.file:
            self.file.with_suffix(".md").write_text(self.as_markdown() + "\n")
            self.file.with_suffix(".json").write_text(self.as_json() + "\n")


#: Figures for the comparison: name, value of a row, and whether a larger value is better.
MEASURES: dict[str, tuple[Callable[[Row], float | None], bool]] = {
    "items/s": (lambda row: _middle(row.speed.items_per_s), True),
    "p50 of a single item": (lambda row: row.speed.p50_ms if row.speed.single_ms else None, False),
    "CPU": (lambda row: _middle(row.speed.cpu_s), False),
    "memory": (lambda row: row.speed.memory_mb or None, False),
    "calls": (lambda row: _middle(row.speed.calls), False),
    "items lost in the kill test": (lambda row: row.kill.lost if row.kill else None, False),
    "items repeated in the kill test": (lambda row: row.kill.repeated if row.kill else None, False),
    "seconds from the kill to the end": (
        lambda row: row.kill.after_s if row.kill and row.kill.ended else None,
        False,
    ),
}
#: Relative difference that counts as noise: rounds differ by as much.
NOISE = 0.05


def advantages(rows: Mapping[str, Row]) -> Iterator[str]:
    """List, for each figure, the peers with a better value than Assay, whose row is the first."""
    (ours, *peers) = rows.values() if rows else (None,)
    if ours is None or not peers:
        return
    yield f"Better than {ours.title}:"
    yield ""
    for name, (read, is_more_better) in MEASURES.items():
        if (own := read(ours)) is None:
            continue
        found = [(row.title, theirs) for row in peers if (theirs := read(row)) is not None]
        leads = [
            f"{title} ({format_number(theirs)})" for title, theirs in found if _is_better(theirs, own, is_more_better)
        ]
        yield f"- {name} ({format_number(own)}): {', '.join(leads) or 'none'}"
    yield ""


def _is_better(theirs: float, own: float, is_more_better: bool) -> bool:
    return theirs > own * (1 + NOISE) if is_more_better else theirs < own * (1 - NOISE)


def _middle(values: Sequence[float]) -> float | None:
    return spread_of(values).middle if values else None


@cache
def machine() -> Machine:
    """Describe this machine, with the versions of the packages that peers use."""
    here = describe((), "")
    return replace(here, versions={"python": here.versions["python"], **installed(PACKAGES)})


def describe_machine() -> str:
    here = machine()
    return f"{here.cores} cores; {here.versions_text}. Timeout: {TIMEOUT_S:.0f} s."


def _range(values: Sequence[float]) -> str:
    found = spread_of(values)
    return f"{format_number(found.middle)} ({found.range()})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
