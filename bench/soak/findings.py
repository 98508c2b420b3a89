"""Consistency checks of a soak: compares accepted items with their outcomes. Pure functions and counters, no
processes."""

import threading
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isclose
from typing import Any, get_args

from tasks.jobs import states
from tasks.jobs.model import Status

#: Statuses of an item with an outcome.
STATUSES = get_args(Status)
#: State and reason of an ended job.
End = tuple[str, str]
DONE: End = (states.DONE, "")
LATE: End = (states.DONE, "deadline")
CANCELLED: End = (states.CANCELLED, "cancelled")
#: Number of findings of a check that report.md lists.
MAX_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Expected:
    """Allowed outcomes of an item."""

    id: str | None = None
    is_good: bool = True
    """Whether the item may succeed."""
    score: float | None = None
    """Expected score if the item succeeds; None: unknown."""
    part: tuple[str, float] | None = None
    """Name and expected value of a part of the score; None: unknown."""
    errors: tuple[str, ...] = ()
    """Error types that the item may fail with; empty: it must not fail."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """An ended job with its rows, as a load client read it."""

    job: str
    name: str
    state: str
    reason: str
    total: int
    ok: int
    failed: int
    rows: Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Finding:
    """A violation that a check found."""

    check: str
    where: str
    problem: str


@dataclass(slots=True)
class Accounting:
    """Findings and counts of a run. Thread-safe."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """Figures of each check, for the report."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_findings(self, check: str, where: str, *problems: str) -> None:
        with self.lock:
            self.findings += [Finding(check, where, problem) for problem in problems]

    @contextmanager
    def recording(self, check: str, where: str) -> Iterator[None]:
        """Record an exception inside the block as a finding.

        Otherwise a thread could die unnoticed: it would record no findings, and the run would look consistent."""
        try:
            yield
        except Exception:  # noqa: BLE001  # recorded as a finding, which makes the run fail
            self.add_findings(check, where, traceback.format_exc()[-600:])

    def count(self, name: str, number: int = 1) -> None:
        with self.lock:
            self.counts[name] += number

    def check_job(self, result: JobResult, expected: Sequence[Expected], ends: Collection[End] = (DONE,)) -> None:
        """Check a job, and count its items by status."""
        self.add_findings("outcomes", f"{result.name} {result.job}", *wrong_outcomes(result, expected, ends))
        self.add_findings("scores", f"{result.name} {result.job}", *wrong_scores(result, expected))
        with self.lock:
            counts = self.by_kind.setdefault(result.name, Counter())
            counts["jobs"] += 1
            counts[f"jobs {result.state}"] += 1
            counts.update(str(row.get("status")) for row in result.rows)
            counts["again"] += sum(max(0, int(row.get("attempts") or 0) - 1) for row in result.rows)
            counts["cached"] += sum(bool(row.get("cached")) for row in result.rows)

    def check_totals(self) -> None:
        """Compare the number of accepted items with the number of outcomes, over all jobs."""
        accepted = self.counts["items accepted"]
        by_status = {status: sum(counts[status] for counts in self.by_kind.values()) for status in STATUSES}
        outcomes = sum(by_status.values())
        listed = ", ".join(f"{number:,} {status.replace('_', ' ')}" for status, number in by_status.items())
        self.notes["outcomes"] = f"{accepted:,} items accepted, {outcomes:,} outcomes: {listed}"
        if accepted != outcomes:
            self.add_findings(
                "outcomes", "all jobs", f"{accepted:,} items were accepted, but {outcomes:,} have an outcome"
            )

    def of(self, check: str) -> list[Finding]:
        with self.lock:
            return [each for each in self.findings if each.check == check]


def wrong_outcomes(result: JobResult, expected: Sequence[Expected], ends: Collection[End] = (DONE,)) -> list[str]:
    """Check that each accepted item has exactly one allowed outcome, in input order, and that the job's end is allowed.

    Returns the violations."""
    rows = result.rows
    if result.state not in states.ENDED:
        return [f"the job is {result.state!r}, which is not an end state"]
    wrong = []
    if (result.state, result.reason) not in ends:
        wrong.append(f"the job ended as {result.state!r} ({result.reason or 'no reason'}), which was not requested")
    if result.total != len(expected):
        wrong.append(f"{len(expected)} items were accepted, but the job has {result.total}")
    seen = Counter(row.get("index") for row in rows)
    if missing := [index for index in range(len(expected)) if not seen[index]]:
        wrong.append(f"{len(missing)} items without an outcome: {missing[:5]}")
    if doubled := [index for index, times in seen.items() if times > 1]:
        wrong.append(f"{len(doubled)} items with several outcomes: {doubled[:5]}")
    if [row.get("index") for row in rows] != sorted(seen.elements(), key=lambda index: -1 if index is None else index):
        wrong.append("outcomes are not in input order")
    counts = Counter(str(row.get("status")) for row in rows)
    if result.ok != counts["ok"]:
        wrong.append(f"the job counts {result.ok} ok, but {counts['ok']} of its outcomes are ok")
    # Items that a deadline or a cancellation cut off read as failed, but the job does not count them as failed.
    failed = counts["failed"] + counts["timed_out"]
    if result.failed > failed or (result.failed < failed and not result.reason):
        wrong.append(f"the job counts {result.failed} failed, but {failed} of its outcomes failed")
    for row in rows:
        at = row.get("index")
        if isinstance(at, int) and 0 <= at < len(expected) and (problem := _wrong_outcome(result, row, expected[at])):
            wrong.append(f"item {at} {problem}")
    return wrong


def _wrong_outcome(result: JobResult, row: Mapping[str, Any], expected: Expected) -> str:
    status, error = row.get("status"), row.get("error") or {}
    if row.get("id") != expected.id:
        return f"has the id {row.get('id')!r}, but was submitted as {expected.id!r}"
    if status not in STATUSES or (result.state == states.DONE and status == "cancelled"):
        return f"is {status!r} in a job that is {result.state}"
    if status == "ok" and not expected.is_good:
        return "is ok, but must fail"
    if status == "ok" and error:
        return f"is ok, but has an error: {error}"
    if status in ("failed", "timed_out") and result.reason != "deadline" and error.get("type") not in expected.errors:
        return f"is {status}: {error.get('type')}: {str(error.get('message'))[:200]}"
    if status != "ok" and row.get("valid"):
        return f"is {status}, but marked as valid"
    return ""


def wrong_scores(result: JobResult, expected: Sequence[Expected]) -> list[str]:
    """Compare the scores of successful items with the expected scores. Returns the differences."""
    wrong = []
    for row in result.rows:
        at = row.get("index")
        if row.get("status") != "ok" or not isinstance(at, int) or not 0 <= at < len(expected):
            continue
        known = expected[at]
        if known.score is not None and not _same(row.get("score"), known.score):
            wrong.append(f"item {at} has the score {row.get('score')}, expected {known.score}")
        if known.part:
            name, value = known.part
            if not _same((row.get("parts") or {}).get(name), value):
                wrong.append(f"item {at} has {name} {(row.get('parts') or {}).get(name)}, expected {value}")
    return wrong


def _same(score: object, known: float) -> bool:
    return isinstance(score, int | float) and isclose(score, known, abs_tol=1e-9)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An ended rollout, with the samples that its consumers acknowledged."""

    rollout: str
    samples_each: int
    groups_ok: int
    acknowledged: Sequence[str]
    """Ids of acknowledged samples, once for each acknowledgement."""
    statistics: Mapping[str, Any]
    is_undone: bool = False
    """Whether Redis lost a moment meanwhile, and with it acknowledgements: their samples are delivered again."""


def wrong_deliveries(delivery: Delivery) -> list[str]:
    """Check that each sample was acknowledged once or dropped as stale, and that no sample remains. Returns
    violations."""
    wrong = []
    if not delivery.is_undone and (
        doubled := [sample for sample, times in Counter(delivery.acknowledged).items() if times > 1]
    ):
        wrong.append(f"{len(doubled)} samples were acknowledged twice: {doubled[:5]}")
    statistics = delivery.statistics
    produced, consumed = statistics["total_produced"], statistics["total_consumed"]
    dropped = statistics["dropped_stale_samples"]
    if produced != delivery.groups_ok * delivery.samples_each:
        wrong.append(
            f"{delivery.groups_ok} groups of {delivery.samples_each} are ok, but {produced} samples were produced"
        )
    if consumed > len(delivery.acknowledged) or (consumed < len(delivery.acknowledged) and not delivery.is_undone):
        wrong.append(f"{len(delivery.acknowledged)} samples were acknowledged, but the server counts {consumed}")
    if produced != consumed + dropped + statistics["queue_size"] + statistics["leased_samples"]:
        wrong.append(
            f"{produced} samples were produced, {consumed} consumed, {dropped} dropped, "
            f"{statistics['queue_size']} are queued, {statistics['leased_samples']} are leased"
        )
    if statistics["queue_size"] or statistics["leased_samples"]:
        wrong.append(
            f"{statistics['queue_size']} samples remain in the queue and {statistics['leased_samples']} are leased"
        )
    return wrong
