"""The soak's books: whatever does not balance is found. A soak that finds nothing is worth what its books are."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.soak import orphans
from bench.soak.books import (
    CANCELLED,
    DONE,
    LATE,
    Account,
    Books,
    Delivery,
    Expected,
    wrong_deliveries,
    wrong_outcomes,
    wrong_scores,
)
from bench.soak.customers import Customers, ends_of
from bench.soak.deaths import ended_by_themselves
from bench.soak.faults import Faults
from bench.soak.memory import MEMORY, Life, Watch, growth_of
from bench.soak.orders import MENU, Order
from bench.soak.report import BOOKS, Line, Run, as_json, as_markdown, balances
from bench.soak.system import Part, System, role_of
from bench.soak.trainers import wrong_end
from config import keys
from tasks.jobs.core import create_core
from tests.conftest import NOWHERE

EXPECTED = [Expected("a", score=1.0), Expected("b", errors=("lost",)), Expected("c", is_good=False, errors=("bad",))]


def row(index: int, status: str = "ok", **fields: Any) -> dict[str, Any]:
    return {"index": index, "id": "abc"[index], "status": status, "score": 1.0, "valid": status == "ok"} | fields


def failed(index: int, error: str) -> dict[str, Any]:
    return row(index, "failed", error={"type": error, "message": "m"}, score=None)


GOOD = [row(0), row(1), failed(2, "bad")]


def account(
    *rows: dict[str, Any], state: str = "done", ok: int | None = None, failed: int | None = None, reason: str = ""
) -> Account:
    statuses = [each["status"] for each in rows]
    ok = statuses.count("ok") if ok is None else ok
    failed = statuses.count("failed") + statuses.count("timed_out") if failed is None else failed
    return Account("j", "rules", state, reason, 3, ok, failed, rows)


def test_books_that_balance_are_left_alone() -> None:
    assert wrong_outcomes(account(*GOOD), EXPECTED) == []
    assert wrong_outcomes(account(row(0), failed(1, "lost"), failed(2, "bad")), EXPECTED) == []
    assert wrong_scores(account(*GOOD), EXPECTED) == []


@pytest.mark.parametrize(
    ("rows", "options", "finding"),
    [
        (GOOD[:2], {}, "1 items without an outcome: [2]"),
        ([*GOOD, row(1)], {}, "1 items with several outcomes: [1]"),
        ([GOOD[1], GOOD[0], GOOD[2]], {}, "outcomes are not in input order"),
        (GOOD, {"ok": 3}, "the job counts 3 ok, its outcomes 2"),
        (GOOD, {"failed": 0}, "the job counts 0 failed, its outcomes 1"),
        (GOOD, {"failed": 2}, "the job counts 2 failed, its outcomes 1"),
        (GOOD, {"state": "running"}, "the job is 'running', which is no end"),
        ([row(0, id="x"), *GOOD[1:]], {}, "item 0 has the id 'x' and came as 'a'"),
        ([row(0, "pending"), *GOOD[1:]], {}, "item 0 is 'pending' in a job that is done"),
        ([row(0, "cancelled", valid=False), *GOOD[1:]], {}, "item 0 is 'cancelled' in a job that is done"),
        ([failed(0, "lost"), *GOOD[1:]], {}, "item 0 is failed: lost: m"),
        ([*GOOD[:2], row(2)], {}, "item 2 is ok, and cannot be"),
        ([*GOOD[:2], failed(2, "bad") | {"valid": True}], {}, "item 2 is failed and valid"),
    ],
)
def test_a_lost_doubled_or_impossible_outcome_is_found(
    rows: list[dict[str, Any]], options: dict[str, Any], finding: str
) -> None:
    assert finding in wrong_outcomes(account(*rows, **options), EXPECTED)


def test_a_deadline_and_a_cancel_leave_items_undone() -> None:
    late = [row(at, "timed_out", error={"type": "timed_out"}, valid=False) for at in range(3)]
    assert wrong_outcomes(account(*late, reason="deadline", failed=0), EXPECTED, (DONE, LATE)) == []
    assert wrong_outcomes(account(*late), EXPECTED)
    cancelled = [row(at, "cancelled", valid=False) for at in range(3)]
    ended = account(*cancelled, state="cancelled", reason="cancelled")
    assert wrong_outcomes(ended, EXPECTED, (DONE, CANCELLED)) == []


@pytest.mark.parametrize(
    ("state", "reason"), [("cancelled", "cancelled"), ("failed", "too_many_failed"), ("done", "deadline")]
)
def test_a_job_that_ends_otherwise_than_its_customer_asked_for_is_found(state: str, reason: str) -> None:
    books = Books()
    books.enter(account(*GOOD, state=state, reason=reason), EXPECTED)
    said = f"the job ended as {state!r} ({reason}), which nobody asked for"
    assert [each.what for each in books.findings] == [said]


def test_a_job_may_end_late_only_with_a_deadline_and_cancelled_only_by_its_customer() -> None:
    plain, late = (Order("o", "simulated", [], {}, [], options) for options in ({}, {"deadline_s": 1.0}))
    assert ends_of(plain, "none") == ends_of(plain, "retry") == {DONE}
    assert ends_of(late, "pause") == {DONE, LATE}
    assert ends_of(plain, "cancel") == {DONE, CANCELLED}


def test_a_rollout_that_ends_short_or_that_nobody_ended_is_found() -> None:
    assert wrong_end({"state": "done", "ok": 40, "reason": ""}, 40, was_ended=False) == []
    assert wrong_end({"state": "cancelled", "ok": 7, "reason": "cancelled"}, 40, was_ended=True) == []
    assert wrong_end({"state": "done", "ok": 39, "reason": ""}, 40, was_ended=False)
    for state in ("failed", "cancelled"):
        assert wrong_end({"state": state, "ok": 40, "reason": "idle"}, 40, was_ended=False) == [
            f"it ended as {state!r} (idle), which nobody asked for"
        ]
    assert wrong_end({"state": "failed", "ok": 7, "reason": ""}, 40, was_ended=True)


def test_a_wrong_score_and_a_wrong_part_are_found() -> None:
    assert wrong_scores(account(row(0, score=0.5)), EXPECTED) == ["item 0 has the score 0.5, it should be 1.0"]
    assert wrong_scores(account(row(0, score=None)), EXPECTED)
    known = [Expected("a", part=("base", 1.0))]
    assert wrong_scores(account(row(0, parts={"base": 1.0})), known) == []
    assert wrong_scores(account(row(0, parts={"base": 0.0})), known)
    assert wrong_scores(account(row(0, parts=None)), known)


def delivery(acknowledged: list[str], **figures: int) -> Delivery:
    told = {"total_produced": 4, "total_consumed": 4, "dropped_stale_samples": 0, "queue_size": 0, "leased_samples": 0}
    return Delivery("r", 2, 2, acknowledged, told | figures)


def test_a_sample_that_is_lost_doubled_or_left_is_found() -> None:
    four = ["1.0", "1.1", "2.0", "2.1"]
    assert wrong_deliveries(delivery(four)) == []
    assert wrong_deliveries(delivery(four[:2], total_consumed=2, dropped_stale_samples=2)) == []
    assert "1 samples were acknowledged twice: ['1.0']" in wrong_deliveries(delivery([*four[:3], "1.0"]))
    assert "3 samples were acknowledged, 4 are counted so" in wrong_deliveries(delivery(four[:3]))
    assert wrong_deliveries(delivery(four[:3], total_consumed=3)), "one was produced and never seen again"
    assert wrong_deliveries(delivery(four, total_produced=6)), "more samples than groups"
    assert wrong_deliveries(delivery(four[:3], total_consumed=3, queue_size=1)), "one still waits"


def looks(seconds: int, rate_mb: float, noise_mb: float = 3.0) -> list[tuple[float, float]]:
    chance = random.Random(1)
    warm = [(float(at), 50.0 + at / 2) for at in range(0, 120, 3)]
    return warm + [
        (float(at), 110.0 + (at - 120) * rate_mb + chance.uniform(0, noise_mb)) for at in range(120, seconds, 3)
    ]


def test_growth_is_found_and_warming_up_and_peaks_are_not_growth() -> None:
    assert not growth_of(looks(600, 0.0)).exceeds(MEMORY)
    leak = growth_of(looks(600, 30 / 600))
    assert leak.exceeds(MEMORY)
    assert leak.per_10_min == pytest.approx(30, rel=0.2)
    peaks = [(at, value + 200 * (at % 60 == 0)) for at, value in looks(600, 0.0)]
    assert not growth_of(peaks).exceeds(MEMORY)


def test_a_life_too_short_to_measure_says_nothing() -> None:
    assert growth_of(looks(200, 10.0)).per_10_min is None
    life = Life("web")
    life.add(0.0, 50.0, 9, 4)
    assert growth_of([(look[0], look[1]) for look in life.looks]).per_10_min is None


def test_an_orphan_key_is_found_and_so_is_one_that_never_lapses() -> None:
    good = {keys.workers(): -1, keys.worker("gpu.n.0"): 5, keys.idempotency("k"): 100, keys.sequence(): -1}
    assert orphans.orphans(good, orphans.STATE) == []
    for name in (keys.job("j"), keys.chunk("c"), keys.claim("h"), keys.waiters("h"), keys.held("w/i/p"), keys.parked()):
        assert orphans.orphans({name: 50}, orphans.STATE) == [f"{name} has no reason to be there"]
    assert orphans.orphans({keys.idempotency("k"): -1}, orphans.STATE) == [
        f"{keys.idempotency('k')} should lapse, and has no time to live"
    ]


def test_every_key_without_expiry_that_any_system_has_may_stay() -> None:
    asked_for = {keys.api_limits, keys.benchmarks}  # by administrators, and by nobody in a soak
    lasting = [make for name, make in vars(keys).items() if "No expiry" in (getattr(make, "__doc__", "") or "")]
    found = {make(): -1 for make in lasting if make not in asked_for and make is not keys}
    assert keys.totals() in found
    assert orphans.orphans(found, orphans.STATE) == []


def test_an_orphan_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    assert list(orphans.files_in(tmp_path, ("jobs",))) == []
    (tmp_path / "jobs" / "j").mkdir()
    assert list(orphans.files_in(tmp_path, ("jobs",))) == ["jobs/j"]
    (tmp_path / "jobs" / "j" / "items.jsonl").write_text("")
    assert list(orphans.files_in(tmp_path, ("jobs",))) == ["jobs/j/items.jsonl"]


def test_an_item_that_no_job_has_an_outcome_of_is_found() -> None:
    books = Books()
    books.count("items accepted", 3)
    books.enter(account(*GOOD), EXPECTED)
    books.balance()
    assert balances(books)
    assert books.notes["outcomes"] == "3 items accepted, 3 outcomes: 2 ok, 1 failed, 0 timed out, 0 cancelled"
    books.count("items accepted")
    books.balance()
    assert [each.what for each in books.findings] == ["4 items were accepted, and 3 have an outcome"]


def test_a_report_says_whether_the_books_balance_and_what_does_not() -> None:
    books, run = Books(), Run(7, 10.0, "today")
    books.enter(account(*GOOD), EXPECTED)
    assert balances(books)
    assert as_json(run, books)["by_kind"]["rules"]["jobs"] == 1
    assert "The books balance." in as_markdown(run, books)
    assert "memory of every process is flat | not measured |" in as_markdown(run, books)
    run.memory.append(Line("web #1", growth_of(looks(600, 0.0))))
    assert "memory of every process is flat | balances |" in as_markdown(run, books)
    books.enter(account(*GOOD[:2]), EXPECTED)
    assert not balances(books)
    text = as_markdown(run, books)
    assert "do NOT balance" in text
    assert "rules j: 1 items without an outcome: [2]" in text
    assert {each.book for each in books.findings} <= BOOKS.keys()


@pytest.fixture(params=list(MENU), ids=lambda make: make.__name__)
def orders(request: pytest.FixtureRequest) -> Iterator[Order]:
    chance = random.Random(5)
    return (request.param(chance) for _ in range(5))


def test_every_order_is_one_that_its_kind_takes_and_says_what_it_expects(orders: Iterator[Order]) -> None:
    from config.settings import Settings
    from tasks.app import create_celery

    settings = Settings(redis_url=NOWHERE)
    with create_celery(settings) as celery:
        kinds = create_core(settings, celery).kinds
        for order in orders:
            kind = kinds[order.kind]
            kind.spec_model.model_validate(order.spec)
            assert [kind.item_model.model_validate(item).id for item in order.items] == [  # type: ignore[attr-defined]
                each.id for each in order.expected
            ]


def test_processes_are_known_by_their_command_lines() -> None:
    worker = ["python", "-m", "workers.main", "device", "--index", "2", "--launcher", "x"]
    launcher = ["python", "-m", "workers.launch", "device"]
    assert role_of(worker, launcher) == "device 2"
    assert role_of(worker, worker) == "device 2 child"
    assert role_of(launcher, ["python", "-m", "workers.up"]) == "launcher device"
    gunicorn = ["python", "/bin/gunicorn", "web.wsgi:app"]
    assert (role_of(gunicorn, ["python", "-m", "workers.up"]), role_of(gunicorn, gunicorn)) == ("gunicorn", "web")
    assert role_of(["python", "-m", "workers.development_policy", "8001"], launcher) == "policy server 8001"


@pytest.mark.parametrize("own", [[], ["workers.main"], ["workers.launch"], ["workers.main device"]])
def test_a_process_that_is_on_its_way_has_a_name_too(own: list[str]) -> None:
    assert role_of(own, [])


def test_whatever_died_without_a_fault_is_found() -> None:
    log = """
12:00:00 WARNING up workers.supervision: redis-state died with exit code 0; starting it again in 0.5 s
12:00:01 WARNING up workers.supervision: gpu.soak.1 died with signal SIGKILL; starting it again in 0.5 s
12:00:02 ERROR web gunicorn.error: Worker (pid:17) was sent SIGKILL! Perhaps out of memory?
"""
    assert not ended_by_themselves(log, {17})
    assert ended_by_themselves(log, {18}) == {("a web process", "signal SIGKILL"): 1}, "it was not we who killed it"
    worse = """
12:00:03 WARNING up workers.supervision: gpu.soak.1 died with signal SIGSEGV; starting it again in 0.5 s
12:00:04 WARNING up workers.supervision: gpu.soak.1 died with signal SIGSEGV; starting it again in 1.0 s
12:00:05 WARNING up workers.supervision: cpu.soak.0 died with exit code 0; starting it again in 0.5 s
12:00:06 ERROR web gunicorn.error: Worker (pid:18) exited with code 1.
"""
    assert ended_by_themselves(log + worse, {17}) == {
        ("gpu.soak.1", "signal SIGSEGV"): 2,
        ("cpu.soak.0", "exit code 0"): 1,
        ("a web process", "exit code 1"): 1,
    }


class NoApi:
    def set(self, **_knobs: object) -> None:
        pass


class BrokenSystem(System):
    """Whose processes cannot be told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.api = NoApi()  # type: ignore[assignment]

    def parts(self) -> list[Part]:
        raise IndexError("list index out of range")


@pytest.fixture
def books() -> Books:
    return Books()


def wait_for_finding(books: Books, where: str) -> None:
    deadline = time.monotonic() + 20
    while not any((each.book, each.where) == ("soak", where) for each in books.findings):
        assert time.monotonic() < deadline, books.findings
        time.sleep(0.01)


def test_a_watch_that_cannot_look_is_found(books: Books, tmp_path: Path) -> None:
    watch = Watch(BrokenSystem(tmp_path), books)
    watch.start()
    wait_for_finding(books, "watch over the memory")
    watch.end()
    assert not balances(books)


def test_faults_that_cannot_be_made_are_found(books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.soak.faults.FIRST_S", 0.0)
    faults = Faults(BrokenSystem(tmp_path), books, 1, 0.1, lambda _: None)
    faults.start()
    wait_for_finding(books, "faults")
    faults.end()


def test_a_customer_that_cannot_go_on_is_found(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.soak.customers.draw", lambda *_: 1 // 0)
    customers = Customers("http://127.0.0.1:1", books, 1, 1)
    customers.start()
    wait_for_finding(books, "customer 0")
    customers.end(20)
    (found,) = books.findings
    assert "ZeroDivisionError" in found.what


def test_a_customer_that_is_still_at_work_is_found(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def draw_slowly(*_: object) -> None:
        has_begun.set()
        may_end.wait(20)

    monkeypatch.setattr("bench.soak.customers.draw", draw_slowly)
    customers = Customers("http://127.0.0.1:1", books, 1, 1)
    customers.start()
    assert has_begun.wait(20)
    customers.end(0)
    said = [(each.book, each.where, each.what) for each in books.findings]
    may_end.set()
    customers.end(20)
    assert said == [("soak", "customer 0", "still at work 0 s after the last fault")]


def test_memory_that_a_long_run_did_not_measure_is_found() -> None:
    assert Run(7, 2.0, "today").unmeasured() == []
    run = Run(7, 10.0, "today")
    assert run.unmeasured() == ["memory", "descriptors"]
    for listed in (run.memory, run.descriptors):
        listed.append(Line("web #1", growth_of(looks(600, 0.0))))
    assert run.unmeasured() == []
