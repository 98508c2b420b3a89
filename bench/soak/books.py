"""The books: what was accepted, what came of it, and where the two disagree. Pure; knows nothing of processes."""

import threading
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isclose
from typing import Any

#: What an item may have come to.
STATUSES = ("ok", "failed", "timed_out", "cancelled")
#: How a job may end: its state, and the reason.
End = tuple[str, str]
DONE: End = ("done", "")
LATE: End = ("done", "deadline")
CANCELLED: End = ("cancelled", "cancelled")
#: Findings of a book that are told in full.
MOST_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Expected:
    """What may become of one item."""

    id: str | None = None
    is_good: bool = True
    """Whether it may be `ok`."""
    score: float | None = None
    """Of an `ok` item, where it is known."""
    part: tuple[str, float] | None = None
    """A part of its score, where that is known."""
    errors: tuple[str, ...] = ()
    """Error types it may fail with; none: it must not fail."""


@dataclass(frozen=True, slots=True)
class Account:
    """An ended job as its customer read it."""

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
    book: str
    where: str
    what: str


@dataclass(slots=True)
class Books:
    """All findings and counts of a run. Threads write to it."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """What each book has to say of itself."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, book: str, where: str, *whats: str) -> None:
        with self.lock:
            self.findings += [Finding(book, where, what) for what in whats]

    @contextmanager
    def telling(self, book: str, where: str) -> Iterator[None]:
        """What goes wrong inside is a finding: a thread that dies unseen leaves books that nobody writes in, and those
        balance."""
        try:
            yield
        except Exception:  # noqa: BLE001  # told in the report, which fails for it
            self.find(book, where, traceback.format_exc()[-600:])

    def count(self, name: str, number: int = 1) -> None:
        with self.lock:
            self.counts[name] += number

    def enter(self, account: Account, expected: Sequence[Expected], ends: Collection[End] = (DONE,)) -> None:
        """Check a job, and count its items."""
        self.find("outcomes", f"{account.name} {account.job}", *wrong_outcomes(account, expected, ends))
        self.find("scores", f"{account.name} {account.job}", *wrong_scores(account, expected))
        with self.lock:
            counts = self.by_kind.setdefault(account.name, Counter())
            counts["jobs"] += 1
            counts[f"jobs {account.state}"] += 1
            counts.update(str(row.get("status")) for row in account.rows)
            counts["again"] += sum(max(0, int(row.get("attempts") or 0) - 1) for row in account.rows)
            counts["cached"] += sum(bool(row.get("cached")) for row in account.rows)

    def balance(self) -> None:
        """All that was accepted against all that came of it, over all jobs."""
        accepted = self.counts["items accepted"]
        by_status = {status: sum(counts[status] for counts in self.by_kind.values()) for status in STATUSES}
        entered = sum(by_status.values())
        listed = ", ".join(f"{number:,} {status.replace('_', ' ')}" for status, number in by_status.items())
        self.notes["outcomes"] = f"{accepted:,} items accepted, {entered:,} outcomes: {listed}"
        if accepted != entered:
            self.find("outcomes", "all jobs", f"{accepted:,} items were accepted, and {entered:,} have an outcome")

    def of(self, book: str) -> list[Finding]:
        with self.lock:
            return [each for each in self.findings if each.book == book]


def wrong_outcomes(account: Account, expected: Sequence[Expected], ends: Collection[End] = (DONE,)) -> list[str]:
    """Every accepted item has exactly one outcome, in order, of a kind that it may have; and the job ended in one of
    these ways."""
    rows = account.rows
    if account.state not in ("done", "failed", "cancelled"):
        return [f"the job is {account.state!r}, which is no end"]
    wrong = []
    if (account.state, account.reason) not in ends:
        wrong.append(f"the job ended as {account.state!r} ({account.reason or 'no reason'}), which nobody asked for")
    if account.total != len(expected):
        wrong.append(f"{len(expected)} items were accepted, the job has {account.total}")
    seen = Counter(row.get("index") for row in rows)
    if missing := [index for index in range(len(expected)) if not seen[index]]:
        wrong.append(f"{len(missing)} items without an outcome: {missing[:5]}")
    if doubled := [index for index, times in seen.items() if times > 1]:
        wrong.append(f"{len(doubled)} items with several outcomes: {doubled[:5]}")
    if [row.get("index") for row in rows] != sorted(seen.elements(), key=lambda index: -1 if index is None else index):
        wrong.append("outcomes are not in input order")
    counts = Counter(str(row.get("status")) for row in rows)
    if account.ok != counts["ok"]:
        wrong.append(f"the job counts {account.ok} ok, its outcomes {counts['ok']}")
    # What a deadline or a cancel cut off has failed as its customer reads it, and is not counted so.
    failed = counts["failed"] + counts["timed_out"]
    if account.failed > failed or (account.failed < failed and not account.reason):
        wrong.append(f"the job counts {account.failed} failed, its outcomes {failed}")
    for row in rows:
        at = row.get("index")
        if isinstance(at, int) and 0 <= at < len(expected) and (problem := _wrong_outcome(account, row, expected[at])):
            wrong.append(f"item {at} {problem}")
    return wrong


def _wrong_outcome(account: Account, row: Mapping[str, Any], expected: Expected) -> str:
    status, error = row.get("status"), row.get("error") or {}
    if row.get("id") != expected.id:
        return f"has the id {row.get('id')!r} and came as {expected.id!r}"
    if status not in STATUSES or (account.state == "done" and status == "cancelled"):
        return f"is {status!r} in a job that is {account.state}"
    if status == "ok" and not expected.is_good:
        return "is ok, and cannot be"
    if status == "ok" and error:
        return f"is ok with an error: {error}"
    if status in ("failed", "timed_out") and account.reason != "deadline" and error.get("type") not in expected.errors:
        return f"is {status}: {error.get('type')}: {str(error.get('message'))[:200]}"
    if status != "ok" and row.get("valid"):
        return f"is {status} and valid"
    return ""


def wrong_scores(account: Account, expected: Sequence[Expected]) -> list[str]:
    """What is known of the scores of items that are ok."""
    wrong = []
    for row in account.rows:
        at = row.get("index")
        if row.get("status") != "ok" or not isinstance(at, int) or not 0 <= at < len(expected):
            continue
        known = expected[at]
        if known.score is not None and not _same(row.get("score"), known.score):
            wrong.append(f"item {at} has the score {row.get('score')}, it should be {known.score}")
        if known.part:
            name, value = known.part
            if not _same((row.get("parts") or {}).get(name), value):
                wrong.append(f"item {at} has {name} {(row.get('parts') or {}).get(name)}, it should be {value}")
    return wrong


def _same(score: object, known: float) -> bool:
    return isinstance(score, int | float) and isclose(score, known, abs_tol=1e-9)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A rollout that has ended, with what its consumers were handed and acknowledged."""

    rollout: str
    samples_each: int
    groups_ok: int
    acknowledged: Sequence[str]
    """Ids of samples, as often as they were acknowledged."""
    statistics: Mapping[str, Any]


def wrong_deliveries(delivery: Delivery) -> list[str]:
    """Every sample was acknowledged once, or dropped as stale; none is left, none is lost."""
    wrong = []
    if doubled := [sample for sample, times in Counter(delivery.acknowledged).items() if times > 1]:
        wrong.append(f"{len(doubled)} samples were acknowledged twice: {doubled[:5]}")
    told = delivery.statistics
    produced, consumed = told["total_produced"], told["total_consumed"]
    dropped = told["dropped_stale_samples"]
    if produced != delivery.groups_ok * delivery.samples_each:
        wrong.append(f"{delivery.groups_ok} groups of {delivery.samples_each} are ok, {produced} samples were produced")
    if consumed != len(delivery.acknowledged):
        wrong.append(f"{len(delivery.acknowledged)} samples were acknowledged, {consumed} are counted so")
    if produced != consumed + dropped + told["queue_size"] + told["leased_samples"]:
        wrong.append(
            f"{produced} samples were produced, {consumed} consumed, {dropped} dropped, {told['queue_size']} wait, "
            f"{told['leased_samples']} are leased"
        )
    if told["queue_size"] or told["leased_samples"]:
        wrong.append(f"{told['queue_size']} samples still wait and {told['leased_samples']} are leased")
    return wrong
