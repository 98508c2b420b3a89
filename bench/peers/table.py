"""What was measured, as one table for people and one document for programs."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.peers.kill import PATIENCE_S, Damage
from bench.peers.registry import GENERATORS
from bench.peers.speed import Speed
from bench.spread import spread

HEAD = (
    "", "given", "items/s", "one item, p50 / p95 ms", "CPU s per 1,000", "of Redis", "memory MB", "calls per question",
    "kill -9 of", "lost", "repeated", "ended",
)  # fmt: skip
PACKAGES = ("celery", "rq", "dramatiq", "openai", "redis", "torch", "transformers")


@dataclass(slots=True)
class Row:
    title: str
    speed: Speed | None = None
    damage: Damage | None = None

    def cells(self) -> list[str]:
        speed, damage = self.speed, self.damage
        cells = [self.title]
        if speed:
            cells += [
                speed.given,
                _range(speed.items_per_s, ".3g"),
                f"{speed.p50_ms:.0f} / {speed.p95_ms:.0f}" if speed.single_ms else "-",
                _range(speed.cpu_s, ".3g"),
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
    conditions: list[str] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Peers that were not measured, and why."""

    def as_markdown(self) -> str:
        lines = [_line(HEAD), _line(["---"] * len(HEAD)), *(_line(row.cells()) for row in self.rows.values()), ""]
        lines += [f"Not measured: {name} ({why})." for name, why in self.skipped.items()]
        lines += [f"{condition}." for condition in self.conditions]
        if agreement := self._agreement():
            lines.append(agreement)
        return "\n".join([*lines, describe_machine()])

    def _agreement(self) -> str:
        """Whether the peers that run a model say the same as one `generate` a row does."""
        measured = {name: row.speed.answers for name, row in self.rows.items() if row.speed and name in GENERATORS}
        theirs = measured.pop("one-by-one", None)
        said = []
        for name, ours in measured.items() if theirs else ():
            pairs = [pair for first in ours for pair in zip(ours[first], (theirs or {})[first], strict=True)]
            said.append(f"{GENERATORS[name].title} {sum(a == b for a, b in pairs)} of {len(pairs)}")
        return f"Answers that are those of one by one, letter for letter: {', '.join(said)}." if said else ""

    def as_json(self) -> str:
        rows = {name: asdict(row) for name, row in self.rows.items()}
        for row in rows.values():
            (row["speed"] or {}).pop("answers", None)
        document = {"machine": machine(), "conditions": self.conditions, "rows": rows, "skipped": self.skipped}
        return json.dumps(document, indent=1)

    def write(self, file: Path) -> None:
        """As Markdown, and beside it as JSON."""
        file.with_suffix(".md").write_text(self.as_markdown() + "\n")
        file.with_suffix(".json").write_text(self.as_json() + "\n")


def machine() -> Mapping[str, Any]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"cores": os.cpu_count(), "python": platform.python_version(), "packages": found}


def describe_machine() -> str:
    here = machine()
    packages = ", ".join(f"{name} {number}" for name, number in here["packages"].items())
    return f"{here['cores']} cores, Python {here['python']}; {packages}. Given up after {PATIENCE_S:.0f} s."


def _range(values: Sequence[float], form: str) -> str:
    found = spread(values)
    return f"{found.middle:{form}} ({found.least:{form}} to {found.most:{form}})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
