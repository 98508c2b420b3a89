"""What was measured, as one table for people and one document for programs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from bench.peers.kill import PATIENCE_S, Damage
from bench.peers.registry import GENERATORS, JUDGES
from bench.peers.speed import Speed
from bench.spread import spread
from tasks.benchmarks.machine import Machine, describe, installed

HEAD = (
    "", "given", "items/s", "one item, p50 / p95 ms", "CPU s per 1,000", "of Redis", "memory MB", "calls per question",
    "kill -9 of", "lost", "repeated", "ended",
)  # fmt: skip
PACKAGES = ("celery", "rq", "dramatiq", "openai", "redis", "torch", "transformers")


@dataclass(slots=True)
class Row:
    title: str
    speed: Speed = field(default_factory=Speed)
    damage: Damage | None = None

    def cells(self) -> list[str]:
        speed, damage = self.speed, self.damage
        cells = [self.title]
        if speed.items_per_s:
            cells += [
                speed.given,
                _range(speed.items_per_s),
                f"{speed.p50_ms:.0f} / {speed.p95_ms:.0f}" if speed.single_ms else "-",
                _range(speed.cpu_s),
                f"{spread(speed.redis_cpu_s).middle:.2g}",
                f"{speed.memory_mb:.0f}",
                f"{spread(speed.calls).middle:.2f}",
            ]
        else:
            cells += ["-"] * 7
        if damage:
            end = f"after {damage.after_s:.0f} s" if damage.ended else f"no, given up after {damage.after_s:.0f} s"
            cells += [damage.killed, f"{damage.lost:,}", f"{damage.repeated:,}", end]
        else:
            cells += ["-"] * 4
        return cells


@dataclass(slots=True)
class Report:
    file: Path | None = None
    """Where it is written to, as Markdown and beside it as JSON."""
    conditions: list[str] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Peers that were not measured, and why."""
    failed: list[str] = field(default_factory=list)
    """What went wrong, by peer."""

    def as_markdown(self) -> str:
        lines = [_line(HEAD), _line(["---"] * len(HEAD)), *(_line(row.cells()) for row in self.rows.values()), ""]
        lines += [f"**Failed:** {what}." for what in self.failed]
        lines += [f"Not measured: {name} ({why})." for name, why in self.skipped.items()]
        lines += [f"{condition}." for condition in self.conditions]
        if agreement := self._agreement():
            lines.append(agreement)
        lines += [describe_machine(), ""]
        for group in (JUDGES, GENERATORS):
            lines += ahead({name: row for name, row in self.rows.items() if name in group})
        return "\n".join(lines)

    def _agreement(self) -> str:
        """Whether the peers that run a model say the same as one `generate` a row does."""
        measured = {name: row.speed.answers for name, row in self.rows.items() if name in GENERATORS}
        theirs = measured.pop("one-by-one", None)
        said = []
        for name, ours in measured.items() if theirs else ():
            both = [(answers, (theirs or {})[first]) for first, answers in ours.items() if first in (theirs or {})]
            pairs = [pair for answers in both for pair in zip(*answers, strict=True)]
            said.append(f"{GENERATORS[name].title} {sum(a == b for a, b in pairs)} of {len(pairs)}")
        return f"Answers that are those of one by one, letter for letter: {', '.join(said)}." if said else ""

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


#: What peers are compared by: what it is called, where it stands, and whether more is better.
MEASURES: dict[str, tuple[Callable[[Row], float | None], bool]] = {
    "items/s": (lambda row: _middle(row.speed.items_per_s), True),
    "p50 of one item": (lambda row: row.speed.p50_ms if row.speed.single_ms else None, False),
    "CPU": (lambda row: _middle(row.speed.cpu_s), False),
    "memory": (lambda row: row.speed.memory_mb or None, False),
    "calls": (lambda row: _middle(row.speed.calls), False),
    "items lost by the kill": (lambda row: row.damage.lost if row.damage else None, False),
    "items repeated by it": (lambda row: row.damage.repeated if row.damage else None, False),
    "seconds to the end after it": (lambda row: row.damage.after_s if row.damage and row.damage.ended else None, False),
}
#: Shares below which a difference is no lead: rounds differ by as much.
NOISE = 0.05


def ahead(rows: Mapping[str, Row]) -> Iterator[str]:
    """Of a kind of work, Assay's row being the first: what others are better in, and by how much."""
    (ours, *others) = rows.values() if rows else (None,)
    if ours is None or not others:
        return
    yield f"Ahead of {ours.title}:"
    yield ""
    for name, (read, is_more_better) in MEASURES.items():
        if (own := read(ours)) is None:
            continue
        found = [(row.title, theirs) for row in others if (theirs := read(row)) is not None]
        leads = [f"{title} ({_short(theirs)})" for title, theirs in found if _leads(theirs, own, is_more_better)]
        yield f"- {name} ({_short(own)}): {', '.join(leads) or 'nobody'}"
    yield ""


def _leads(theirs: float, own: float, is_more_better: bool) -> bool:
    return theirs > own * (1 + NOISE) if is_more_better else theirs < own * (1 - NOISE)


def _middle(values: Sequence[float]) -> float | None:
    return spread(values).middle if values else None


@cache
def machine() -> Machine:
    """Where this runs, with the packages that peers are made of."""
    here = describe((), "")
    return replace(here, versions={"python": here.versions["python"], **installed(PACKAGES)})


def describe_machine() -> str:
    here = machine()
    versions = ", ".join(f"{name} {number}" for name, number in here.versions.items())
    return f"{here.cores} cores; {versions}. Given up after {PATIENCE_S:.0f} s."


def _range(values: Sequence[float]) -> str:
    found = spread(values)
    return f"{_short(found.middle)} ({_short(found.least)} to {_short(found.most)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
