"""Report of a soak: `report.md` for people, `report.json` for programs."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.soak.findings import MAX_EXAMPLES, Accounting
from bench.soak.resource_growth import DESCRIPTORS, MEMORY, REDIS, THREADS, WARM_UP_S, Bound, Growth
from tasks.jobs.states import ENDED

#: Consistency checks, in the order of the report, with the condition that each verifies.
CHECKS = {
    "outcomes": "every accepted item has exactly one allowed outcome, in input order",
    "scores": "scores and answers equal the expected values",
    "idempotency": "an idempotency key creates a single job",
    "rollouts": "every sample was acknowledged once, or dropped as stale",
    "calls": "the API answered every counted call",
    "memory": "memory of every process is flat",
    "redis": "memory of Redis is flat",
    "descriptors": "descriptors and threads of every process are flat",
    "keys": "every remaining key is allowed",
    "files": "no file remains",
    "processes": "no process remains, was abandoned by its supervisor or ended unexpectedly",
    "soak": "the threads of the soak itself ran to the end",
}
#: Minimum minutes of a run whose processes live long enough to be measured.
MEASURED_MINUTES = 10.0


@dataclass(frozen=True, slots=True)
class Line:
    """Growth of a process or of a Redis server, as a row of a table."""

    name: str
    growth: Growth


@dataclass(slots=True)
class Run:
    """Measurements and faults of a soak."""

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
    starts: Counter[str] = field(default_factory=Counter)
    keys: Mapping[str, int] = field(default_factory=dict)

    def measures(self, check: str) -> bool:
        """Return whether the check has data: growth needs processes that lived long enough."""
        lines = {"memory": self.memory, "descriptors": self.descriptors}.get(check)
        return lines is None or any(line.growth.per_10_min is not None for line in lines)

    def unmeasured(self) -> list[str]:
        """Return the growth checks without data in a run that was long enough for them."""
        return [check for check in CHECKS if self.minutes >= MEASURED_MINUTES and not self.measures(check)]


def is_consistent(accounting: Accounting) -> bool:
    return not accounting.findings


def as_json(run: Run, accounting: Accounting) -> dict[str, Any]:
    def lines(listed: Sequence[Line]) -> list[dict[str, Any]]:
        return [
            {
                "name": line.name,
                "first": round(line.growth.first, 2),
                "middle": round(line.growth.middle, 2),
                "last": round(line.growth.last, 2),
                "measured_s": round(line.growth.seconds),
                "per_10_min": None if line.growth.per_10_min is None else round(line.growth.per_10_min, 2),
            }
            for line in listed
        ]

    return {
        "balances": is_consistent(accounting),
        "seed": run.seed,
        "minutes": run.minutes,
        "began": run.began,
        "seconds": round(run.seconds, 1),
        "counts": dict(accounting.counts),
        "by_kind": {name: dict(counts) for name, counts in sorted(accounting.by_kind.items())},
        "faults": dict(run.fault_counts),
        "fault_log": [[round(at, 1), description] for at, description in run.faults],
        "log": dict(run.log_counts),
        "memory_mb": lines(run.memory),
        "redis_mb": lines(run.redis),
        "descriptors": lines(run.descriptors),
        "threads": lines(run.threads),
        "starts": dict(run.starts),
        "keys": dict(run.keys),
        "accounting": {
            name: {
                "note": accounting.notes.get(name, ""),
                "findings": [[each.where, each.problem] for each in accounting.of(name)],
            }
            for name in CHECKS
        },
    }


def as_markdown(run: Run, accounting: Accounting) -> str:
    counts = accounting.counts
    lines = [
        f"# Soak of {run.began}",
        "",
        f"Accounting is {'consistent' if is_consistent(accounting) else 'NOT consistent'}. "
        f"{run.minutes:g} minutes of work and faults, {run.seconds:.0f} s in total, seed {run.seed}.",
        "",
        f"{counts['jobs accepted']} jobs with {counts['items accepted']:,} items were accepted, and "
        f"{counts['rollouts accepted']} rollouts, of which {counts['samples acknowledged']:,} samples were used; "
        f"{sum(run.fault_counts.values())} faults.",
        "",
        "## Checks",
        "",
        "| check | verdict | figures |",
        "|---|---|---|",
    ]
    for name, condition in CHECKS.items():
        found = accounting.of(name)
        verdict = f"**{len(found)} findings**" if found else "consistent" if run.measures(name) else "not measured"
        lines.append(f"| {name}: {condition} | {verdict} | {accounting.notes.get(name, '')} |")
    for name in CHECKS:
        if found := accounting.of(name):
            lines += ["", f"### Findings: {name}", ""]
            lines += [f"- {each.where}: {each.problem}" for each in found[:MAX_EXAMPLES]]
            if len(found) > MAX_EXAMPLES:
                lines.append(f"- and {len(found) - MAX_EXAMPLES} more, in report.json")
    columns = "jobs | done, failed, cancelled | ok | failed | timed out | cancelled | from the cache | retried attempts"
    lines += ["", "## Jobs", "", f"| workload | {columns} |", f"|{'---|' * 9}"]
    for name, each in sorted(accounting.by_kind.items()):
        ends = ", ".join(str(each[f"jobs {state}"]) for state in ENDED)
        lines.append(
            f"| {name} | {each['jobs']} | {ends} | {each['ok']} | {each['failed']} | {each['timed_out']} | "
            f"{each['cancelled']} | {each['cached']} | {each['again']} |"
        )
    actions = {name: number for name, number in counts.items() if name.startswith("action") or "lost" in name}
    listed = (f"{name.removeprefix('action: ')} {number}" for name, number in sorted(actions.items()))
    lines += ["", "Actions of the load clients: " + ", ".join(listed)]
    lines += ["", "## Faults", "", "| fault | times |", "|---|---|"]
    lines += [f"| {name} | {number} |" for name, number in run.fault_counts.most_common()]
    lines += ["", "Reactions in the log of the system:", "", "| log line | times |", "|---|---|"]
    lines += [f"| {name} | {number} |" for name, number in run.log_counts.items()]
    lines += ["", "## Memory", "", _rule("MB", MEMORY)]
    lines += _table(run.memory, MEMORY)
    lines += ["", "Redis, as it reports itself (`used_memory`). " + _rule("MB", REDIS)]
    lines += _table(run.redis, REDIS)
    lines += ["", "## Descriptors and threads", "", _rule("descriptors", DESCRIPTORS)]
    lines += _table(run.descriptors, DESCRIPTORS)
    lines += ["", _rule("threads", THREADS)]
    lines += _table(run.threads, THREADS)
    starts = ", ".join(f"{role} {number}" for role, number in sorted(run.starts.items()))
    lines += ["", "## Starts", "", f"Number of starts of each process: {starts}"]
    lines += ["", "## Remaining keys", "", "| pattern | keys |", "|---|---|"]
    lines += [f"| `{pattern}` | {number} |" for pattern, number in sorted(run.keys.items())]
    lines += ["", "## Faults in order", ""]
    lines += [f"- {at:.1f} s: {description}" for at, description in run.faults]
    return "\n".join(lines) + "\n"


def _rule(unit: str, bound: Bound) -> str:
    return (
        f"Limit: {bound.per_10_min:g} {unit} per ten minutes and {bound.total:g} in total, measured in the second half "
        f"of the run, without the first {WARM_UP_S:.0f} s of each process. Processes with a short lifetime are omitted."
    )


def _table(listed: Sequence[Line], bound: Bound) -> list[str]:
    if not any(line.growth.per_10_min is not None for line in listed):
        return ["", "No process lived long enough to be measured."]
    rows = ["", "| process | first | median | last | measured, s | per ten minutes |", "|---|---|---|---|---|---|"]
    for line in listed:
        each = line.growth
        if each.per_10_min is not None:
            mark = " **exceeded**" if each.exceeds(bound) else ""
            rows.append(
                f"| {line.name} | {each.first:.1f} | {each.middle:.1f} | {each.last:.1f} | {each.seconds:.0f} | "
                f"{each.per_10_min:+.1f}{mark} |"
            )
    return rows


def write(folder: Path, run: Run, accounting: Accounting) -> None:
    (folder / "report.md").write_text(as_markdown(run, accounting))
    (folder / "report.json").write_text(json.dumps(as_json(run, accounting), indent=1))
