"""The report of a run: `report.md` for people, `report.json` for programs."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.soak.books import MOST_EXAMPLES, Books
from bench.soak.memory import DESCRIPTORS, MEMORY, REDIS, THREADS, WARM_S, Bound, Growth

#: The books, in the order of the report, with what balances in them.
BOOKS = {
    "outcomes": "every accepted item has exactly one outcome, in order, of a kind it may have",
    "scores": "scores and answers that are known are right",
    "idempotency": "a key is one job",
    "rollouts": "every sample was acknowledged once, or dropped as stale",
    "calls": "calls that are counted here were made there",
    "memory": "memory of every process is flat",
    "redis": "memory of Redis is flat",
    "descriptors": "descriptors and threads of every process are flat",
    "keys": "every key that is left has a reason",
    "files": "no file is left",
    "processes": "no process is left, none was given up, and none ended by itself",
    "soak": "the soak's own threads worked to the end",
}


#: Minutes from which on a run has lives that are long enough.
MEASURED_MINUTES = 10.0


@dataclass(frozen=True, slots=True)
class Line:
    """One life, or one Redis, in a table of growth."""

    name: str
    growth: Growth


@dataclass(slots=True)
class Run:
    seed: int
    minutes: float
    began: str
    seconds: float = 0.0
    faults: Sequence[tuple[float, str]] = ()
    fault_counts: Counter[str] = field(default_factory=Counter)
    log_counts: Mapping[str, int] = field(default_factory=dict)
    memory: list[Line] = field(default_factory=list)
    redis: list[Line] = field(default_factory=list)
    descriptors: list[Line] = field(default_factory=list)
    threads: list[Line] = field(default_factory=list)
    lives: Counter[str] = field(default_factory=Counter)
    keys: Mapping[str, int] = field(default_factory=dict)

    def measures(self, book: str) -> bool:
        """Growth can be told of lives that were long enough only; a short run has none."""
        needed = {"memory": self.memory, "descriptors": self.descriptors}.get(book)
        return needed is None or any(line.growth.per_10_min is not None for line in needed)

    def unmeasured(self) -> list[str]:
        """Books of growth that a run of this length should have measured, and has not."""
        return [book for book in BOOKS if self.minutes >= MEASURED_MINUTES and not self.measures(book)]


def balances(books: Books) -> bool:
    return not books.findings


def as_json(run: Run, books: Books) -> dict[str, Any]:
    def lines(listed: Sequence[Line]) -> list[dict[str, Any]]:
        return [
            {
                "name": line.name, "first": round(line.growth.first, 2), "middle": round(line.growth.middle, 2),
                "last": round(line.growth.last, 2), "measured_s": round(line.growth.seconds),
                "per_10_min": None if line.growth.per_10_min is None else round(line.growth.per_10_min, 2),
            }
            for line in listed
        ]  # fmt: skip

    return {
        "balances": balances(books),
        "seed": run.seed,
        "minutes": run.minutes,
        "began": run.began,
        "seconds": round(run.seconds, 1),
        "counts": dict(books.counts),
        "by_kind": {name: dict(counts) for name, counts in sorted(books.by_kind.items())},
        "faults": dict(run.fault_counts),
        "fault_log": [[round(at, 1), what] for at, what in run.faults],
        "log": dict(run.log_counts),
        "memory_mb": lines(run.memory),
        "redis_mb": lines(run.redis),
        "descriptors": lines(run.descriptors),
        "threads": lines(run.threads),
        "starts": dict(run.lives),
        "keys": dict(run.keys),
        "books": {
            name: {"note": books.notes.get(name, ""), "findings": [[each.where, each.what] for each in books.of(name)]}
            for name in BOOKS
        },
    }


def as_markdown(run: Run, books: Books) -> str:
    counts = books.counts
    lines = [
        f"# Soak of {run.began}",
        "",
        f"{'The books balance.' if balances(books) else 'The books do NOT balance.'} "
        f"{run.minutes:g} minutes of work and faults, {run.seconds:.0f} s in all, seed {run.seed}.",
        "",
        f"{counts['jobs accepted']} jobs with {counts['items accepted']:,} items were accepted, and "
        f"{counts['rollouts accepted']} rollouts, of which {counts['samples acknowledged']:,} samples were used; "
        f"{sum(run.fault_counts.values())} faults.",
        "",
        "## Books",
        "",
        "| book | verdict | figures |",
        "|---|---|---|",
    ]
    for name, what in BOOKS.items():
        found = books.of(name)
        verdict = f"**{len(found)} findings**" if found else "balances" if run.measures(name) else "not measured"
        lines.append(f"| {name}: {what} | {verdict} | {books.notes.get(name, '')} |")
    for name in BOOKS:
        if found := books.of(name):
            lines += ["", f"### What does not balance: {name}", ""]
            lines += [f"- {each.where}: {each.what}" for each in found[:MOST_EXAMPLES]]
            if len(found) > MOST_EXAMPLES:
                lines.append(f"- and {len(found) - MOST_EXAMPLES} more, in report.json")
    lines += ["", "## Jobs", "", "| order | jobs | done, failed, cancelled | ok | failed | timed out | cancelled | from the cache | attempts beyond the first |", "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip  # noqa: E501
    for name, each in sorted(books.by_kind.items()):
        ends = ", ".join(str(each[f"jobs {state}"]) for state in ("done", "failed", "cancelled"))
        lines.append(
            f"| {name} | {each['jobs']} | {ends} | {each['ok']} | {each['failed']} | {each['timed_out']} | "
            f"{each['cancelled']} | {each['cached']} | {each['again']} |"
        )
    others = {name: number for name, number in counts.items() if name.startswith("twist") or "lost" in name}
    listed = (f"{name.removeprefix('twist: ')} {number}" for name, number in sorted(others.items()))
    lines += ["", "Meddling: " + ", ".join(listed)]
    lines += ["", "## Faults", "", "| fault | times |", "|---|---|"]
    lines += [f"| {name} | {number} |" for name, number in run.fault_counts.most_common()]
    lines += ["", "What the system said of them:", "", "| line of its log | times |", "|---|---|"]
    lines += [f"| {name} | {number} |" for name, number in run.log_counts.items()]
    lines += ["", "## Memory", "", _rule("MB", MEMORY)]
    lines += _table(run.memory, MEMORY)
    lines += ["", "Redis, by its own account (`used_memory`). " + _rule("MB", REDIS)]
    lines += _table(run.redis, REDIS)
    lines += ["", "## Descriptors and threads", "", _rule("descriptors", DESCRIPTORS)]
    lines += _table(run.descriptors, DESCRIPTORS)
    lines += ["", _rule("threads", THREADS)]
    lines += _table(run.threads, THREADS)
    lines += ["", "## Starts", "", "How often each part was started: " + ", ".join(f"{role} {number}" for role, number in sorted(run.lives.items()))]  # fmt: skip  # noqa: E501
    lines += ["", "## Keys that are left", "", "| pattern | keys |", "|---|---|"]
    lines += [f"| `{pattern}` | {number} |" for pattern, number in sorted(run.keys.items())]
    lines += ["", "## Faults in order", ""]
    lines += [f"- {at:.1f} s: {what}" for at, what in run.faults]
    return "\n".join(lines) + "\n"


def _rule(unit: str, bound: Bound) -> str:
    return (
        f"Too much is more than {bound.per_10_min:g} {unit} per ten minutes and {bound.in_all:g} in all, "
        f"measured in the second half, without the first {WARM_S:.0f} s of each life; lives too short are left out."
    )


def _table(listed: Sequence[Line], bound: Bound) -> list[str]:
    if not any(line.growth.per_10_min is not None for line in listed):
        return ["", "Nothing lived long enough to be measured."]
    rows = ["", "| part | first | median | last | measured, s | per ten minutes |", "|---|---|---|---|---|---|"]
    for line in listed:
        each = line.growth
        if each.per_10_min is not None:
            mark = " **too much**" if each.exceeds(bound) else ""
            rows.append(
                f"| {line.name} | {each.first:.1f} | {each.middle:.1f} | {each.last:.1f} | {each.seconds:.0f} | "
                f"{each.per_10_min:+.1f}{mark} |"
            )
    return rows


def write(folder: Path, run: Run, books: Books) -> None:
    (folder / "report.md").write_text(as_markdown(run, books))
    (folder / "report.json").write_text(json.dumps(as_json(run, books), indent=1))
