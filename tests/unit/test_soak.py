"""Consistency checks of the soak: each kind of violation is found, and correct results are not."""

import ast
import random
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.peers.adapters.assay_inference import PUT_BACK
from bench.soak import earlier_state, leaks
from bench.soak.fault_injector import FaultInjector
from bench.soak.findings import (
    CANCELLED,
    DONE,
    LATE,
    Accounting,
    Delivery,
    Expected,
    JobResult,
    wrong_deliveries,
    wrong_outcomes,
    wrong_scores,
)
from bench.soak.load_clients import LoadClients, ends_of
from bench.soak.lost_moments import LostMoments
from bench.soak.report import CHECKS, Line, Run, as_json, as_markdown, is_consistent
from bench.soak.resource_growth import MEMORY, ProcessSamples, ResourceMonitor, growth_of
from bench.soak.rollout_trainer import wrong_end
from bench.soak.run import LOG_PATTERNS
from bench.soak.system_under_test import Part, System, role_of
from bench.soak.unexpected_exits import unexpected_exits
from bench.soak.workload import WEIGHTS, PlannedJob
from config import keys
from tasks.composition import create_core
from tests.conftest import NOWHERE, ROOT
from tests.support.programs import PATIENCE_S, wait_until

EXPECTED = [Expected("a", score=1.0), Expected("b", errors=("lost",)), Expected("c", is_good=False, errors=("bad",))]


def row(index: int, status: str = "ok", **fields: Any) -> dict[str, Any]:
    return {"index": index, "id": "abc"[index], "status": status, "score": 1.0, "valid": status == "ok"} | fields


def failed(index: int, error: str) -> dict[str, Any]:
    return row(index, "failed", error={"type": error, "message": "m"}, score=None)


GOOD = [row(0), row(1), failed(2, "bad")]


def result(
    *rows: dict[str, Any], state: str = "done", ok: int | None = None, failed: int | None = None, reason: str = ""
) -> JobResult:
    statuses = [each["status"] for each in rows]
    ok = statuses.count("ok") if ok is None else ok
    failed = statuses.count("failed") + statuses.count("timed_out") if failed is None else failed
    return JobResult("j", "rules", state, reason, 3, ok, failed, rows)


def test_correct_outcomes_and_scores_have_no_findings() -> None:
    assert wrong_outcomes(result(*GOOD), EXPECTED) == []
    assert wrong_outcomes(result(row(0), failed(1, "lost"), failed(2, "bad")), EXPECTED) == []
    assert wrong_scores(result(*GOOD), EXPECTED) == []


@pytest.mark.parametrize(
    ("rows", "options", "finding"),
    [
        (GOOD[:2], {}, "1 items without an outcome: [2]"),
        ([*GOOD, row(1)], {}, "1 items with several outcomes: [1]"),
        ([GOOD[1], GOOD[0], GOOD[2]], {}, "outcomes are not in input order"),
        (GOOD, {"ok": 3}, "the job counts 3 ok, but 2 of its outcomes are ok"),
        (GOOD, {"failed": 0}, "the job counts 0 failed, but 1 of its outcomes failed"),
        (GOOD, {"failed": 2}, "the job counts 2 failed, but 1 of its outcomes failed"),
        (GOOD, {"state": "running"}, "the job is 'running', which is not an end state"),
        ([row(0, id="x"), *GOOD[1:]], {}, "item 0 has the id 'x', but was submitted as 'a'"),
        ([row(0, "pending"), *GOOD[1:]], {}, "item 0 is 'pending' in a job that is done"),
        ([row(0, "cancelled", valid=False), *GOOD[1:]], {}, "item 0 is 'cancelled' in a job that is done"),
        ([failed(0, "lost"), *GOOD[1:]], {}, "item 0 is failed: lost: m"),
        ([*GOOD[:2], row(2)], {}, "item 2 is ok, but must fail"),
        ([*GOOD[:2], failed(2, "bad") | {"valid": True}], {}, "item 2 is failed, but marked as valid"),
    ],
)
def test_a_missing_duplicate_or_impossible_outcome_is_a_finding(
    rows: list[dict[str, Any]], options: dict[str, Any], finding: str
) -> None:
    assert finding in wrong_outcomes(result(*rows, **options), EXPECTED)


def test_items_cut_off_by_a_deadline_or_a_cancellation_are_allowed() -> None:
    late = [row(at, "timed_out", error={"type": "timed_out"}, valid=False) for at in range(3)]
    assert wrong_outcomes(result(*late, reason="deadline", failed=0), EXPECTED, (DONE, LATE)) == []
    assert wrong_outcomes(result(*late), EXPECTED)
    cancelled = [row(at, "cancelled", valid=False) for at in range(3)]
    ended = result(*cancelled, state="cancelled", reason="cancelled")
    assert wrong_outcomes(ended, EXPECTED, (DONE, CANCELLED)) == []


@pytest.mark.parametrize(
    ("state", "reason"), [("cancelled", "cancelled"), ("failed", "too_many_failed"), ("done", "deadline")]
)
def test_an_unrequested_end_of_a_job_is_a_finding(state: str, reason: str) -> None:
    accounting = Accounting()
    accounting.check_job(result(*GOOD, state=state, reason=reason), EXPECTED)
    expected = f"the job ended as {state!r} ({reason}), which was not requested"
    assert [each.problem for each in accounting.findings] == [expected]


def test_the_allowed_ends_of_a_job_follow_from_its_deadline_and_the_clients_action() -> None:
    plain, late = (PlannedJob("o", "simulated", [], {}, [], options) for options in ({}, {"deadline_s": 1.0}))
    assert ends_of(plain, "none") == ends_of(plain, "retry") == {DONE}
    assert ends_of(late, "pause") == {DONE, LATE}
    assert ends_of(plain, "cancel") == {DONE, CANCELLED}


def test_an_early_or_unrequested_end_of_a_rollout_is_a_finding() -> None:
    assert wrong_end({"state": "done", "ok": 40, "reason": ""}, 40, was_ended=False) == []
    assert wrong_end({"state": "cancelled", "ok": 7, "reason": "cancelled"}, 40, was_ended=True) == []
    assert wrong_end({"state": "done", "ok": 39, "reason": ""}, 40, was_ended=False)
    for state in ("failed", "cancelled"):
        assert wrong_end({"state": state, "ok": 40, "reason": "idle"}, 40, was_ended=False) == [
            f"the rollout ended as {state!r} (idle), which was not requested"
        ]
    assert wrong_end({"state": "failed", "ok": 7, "reason": ""}, 40, was_ended=True)


def test_a_wrong_score_and_a_wrong_part_are_findings() -> None:
    assert wrong_scores(result(row(0, score=0.5)), EXPECTED) == ["item 0 has the score 0.5, expected 1.0"]
    assert wrong_scores(result(row(0, score=None)), EXPECTED)
    known = [Expected("a", part=("base", 1.0))]
    assert wrong_scores(result(row(0, parts={"base": 1.0})), known) == []
    assert wrong_scores(result(row(0, parts={"base": 0.0})), known)
    assert wrong_scores(result(row(0, parts=None)), known)


def delivery(acknowledged: list[str], **figures: int) -> Delivery:
    statistics = {
        "total_produced": 4,
        "total_consumed": 4,
        "dropped_stale_samples": 0,
        "queue_size": 0,
        "leased_samples": 0,
    }
    return Delivery("r", 2, 2, acknowledged, statistics | figures)


def test_a_lost_duplicate_or_remaining_sample_is_a_finding() -> None:
    four = ["1.0", "1.1", "2.0", "2.1"]
    assert wrong_deliveries(delivery(four)) == []
    assert wrong_deliveries(delivery(four[:2], total_consumed=2, dropped_stale_samples=2)) == []
    assert "1 samples were acknowledged twice: ['1.0']" in wrong_deliveries(delivery([*four[:3], "1.0"]))
    assert "3 samples were acknowledged, but the server counts 4" in wrong_deliveries(delivery(four[:3]))
    assert wrong_deliveries(delivery(four[:3], total_consumed=3)), "a lost sample is not found"
    assert wrong_deliveries(delivery(four, total_produced=6)), "surplus samples are not found"
    assert wrong_deliveries(delivery(four[:3], total_consumed=3, queue_size=1)), "a queued sample is not found"


def samples(seconds: int, rate_mb: float, noise_mb: float = 3.0) -> list[tuple[float, float]]:
    chance = random.Random(1)
    warm = [(float(at), 50.0 + at / 2) for at in range(0, 120, 3)]
    return warm + [
        (float(at), 110.0 + (at - 120) * rate_mb + chance.uniform(0, noise_mb)) for at in range(120, seconds, 3)
    ]


def test_growth_is_a_finding_but_warm_up_and_peaks_are_not() -> None:
    assert not growth_of(samples(600, 0.0)).exceeds(MEMORY)
    leak = growth_of(samples(600, 30 / 600))
    assert leak.exceeds(MEMORY)
    assert leak.per_10_min == pytest.approx(30, rel=0.2)
    peaks = [(at, value + 200 * (at % 60 == 0)) for at, value in samples(600, 0.0)]
    assert not growth_of(peaks).exceeds(MEMORY)


def test_a_process_with_a_short_lifetime_has_no_growth() -> None:
    assert growth_of(samples(200, 10.0)).per_10_min is None
    life = ProcessSamples("web")
    life.add(0.0, 50.0, 9, 4)
    assert growth_of([(sample[0], sample[1]) for sample in life.samples]).per_10_min is None


def test_an_unexpected_key_and_a_key_without_ttl_are_findings() -> None:
    good = {keys.workers(): -1, keys.worker("gpu.n.0"): 5, keys.idempotency("k"): 100, keys.sequence(): -1}
    assert leaks.unexpected_keys(good, leaks.STATE_KEYS) == []
    for name in (keys.job("j"), keys.chunk("c"), keys.claim("h"), keys.waiters("h"), keys.held("w/i/p"), keys.parked()):
        assert leaks.unexpected_keys({name: 50}, leaks.STATE_KEYS) == [f"{name} must not remain"]
    assert leaks.unexpected_keys({keys.idempotency("k"): -1}, leaks.STATE_KEYS) == [
        f"{keys.idempotency('k')} must expire, but has no TTL"
    ]


def test_every_key_without_expiry_of_a_running_system_is_allowed() -> None:
    on_request = {keys.api_limits, keys.benchmarks}  # created by administrators, not in a soak
    lasting = [make for name, make in vars(keys).items() if "No TTL" in (getattr(make, "__doc__", "") or "")]
    found = {make(): -1 for make in lasting if make not in on_request and make is not keys}
    assert keys.totals() in found
    assert leaks.unexpected_keys(found, leaks.STATE_KEYS) == []


def test_a_leftover_file_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    assert list(leaks.leftover_files(tmp_path, ("jobs",))) == []
    (tmp_path / "jobs" / "j").mkdir()
    assert list(leaks.leftover_files(tmp_path, ("jobs",))) == ["jobs/j"]
    (tmp_path / "jobs" / "j" / "items.jsonl").write_text("")
    assert list(leaks.leftover_files(tmp_path, ("jobs",))) == ["jobs/j/items.jsonl"]


def test_an_accepted_item_without_an_outcome_is_a_finding() -> None:
    accounting = Accounting()
    accounting.count("items accepted", 3)
    accounting.check_job(result(*GOOD), EXPECTED)
    accounting.check_totals()
    assert is_consistent(accounting)
    assert accounting.notes["outcomes"] == "3 items accepted, 3 outcomes: 2 ok, 1 failed, 0 timed out, 0 cancelled"
    accounting.count("items accepted")
    accounting.check_totals()
    assert [each.problem for each in accounting.findings] == ["4 items were accepted, but 3 have an outcome"]


def test_a_report_says_whether_accounting_is_consistent_and_lists_findings() -> None:
    accounting, run = Accounting(), Run(7, 10.0, "today")
    accounting.check_job(result(*GOOD), EXPECTED)
    assert is_consistent(accounting)
    assert as_json(run, accounting)["by_kind"]["rules"]["jobs"] == 1
    assert "Accounting is consistent." in as_markdown(run, accounting)
    assert "memory of every process is flat | not measured |" in as_markdown(run, accounting)
    run.memory.append(Line("web #1", growth_of(samples(600, 0.0))))
    assert "memory of every process is flat | consistent |" in as_markdown(run, accounting)
    accounting.check_job(result(*GOOD[:2]), EXPECTED)
    assert not is_consistent(accounting)
    text = as_markdown(run, accounting)
    assert "Accounting is NOT consistent." in text
    assert "rules j: 1 items without an outcome: [2]" in text
    assert {each.check for each in accounting.findings} <= CHECKS.keys()


def test_a_request_in_a_lost_moment_may_be_undone_and_no_other() -> None:
    lost = LostMoments()
    assert not lost.has(0.0, 100.0)
    lost.add(10.0, 11.0)
    assert lost.number == 1
    assert lost.has(10.2, 10.4)
    assert lost.has(5.0, 50.0)
    assert not lost.has(5.0, 9.0)
    assert not lost.has(12.0, 13.0)


def test_samples_that_are_delivered_again_after_a_lost_moment_are_allowed_and_lost_samples_are_not() -> None:
    statistics = {"total_produced": 4, "total_consumed": 4, "dropped_stale_samples": 0}
    statistics |= {"queue_size": 0, "leased_samples": 0}
    twice = Delivery("r", 2, 2, ["a", "b", "c", "d", "a"], statistics)
    assert wrong_deliveries(twice)
    assert wrong_deliveries(replace(twice, is_undone=True)) == []
    assert wrong_deliveries(replace(twice, is_undone=True, acknowledged=["a", "b", "c"]))
    assert wrong_deliveries(replace(twice, is_undone=True, groups_ok=3))


def test_a_file_that_redis_has_rewritten_is_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "appendonly.aof"
    file.write_bytes(b"0123456789")
    inode = file.stat().st_ino
    assert not earlier_state.cut_back(file, 20, inode)
    assert not earlier_state.cut_back(file, 5, inode + 1)
    assert file.stat().st_size == 10
    assert earlier_state.cut_back(file, 5, inode)
    assert file.read_bytes() == b"01234"


@pytest.fixture(params=list(WEIGHTS), ids=lambda make: make.__name__)
def planned_jobs(request: pytest.FixtureRequest) -> Iterator[PlannedJob]:
    chance = random.Random(5)
    return (request.param(chance) for _ in range(5))


def test_every_planned_job_is_valid_for_its_kind_and_has_an_expectation_for_each_item(
    planned_jobs: Iterator[PlannedJob],
) -> None:
    from config.settings import Settings
    from tasks.app import create_celery

    settings = Settings(redis_url=NOWHERE)
    with create_celery(settings) as celery:
        kinds = create_core(settings, celery).kinds
        for planned in planned_jobs:
            kind = kinds[planned.kind]
            kind.spec_model.model_validate(planned.spec)
            assert [kind.item_model.model_validate(item).id for item in planned.items] == [  # type: ignore[attr-defined]
                each.id for each in planned.expected
            ]


def test_the_role_of_a_process_follows_from_its_command_line() -> None:
    worker = ["python", "-m", "workers.main", "device", "--index", "2", "--launcher", "x"]
    launcher = ["python", "-m", "workers.launch", "device"]
    assert role_of(worker, launcher) == "device 2"
    assert role_of(worker, worker) == "device 2 child"
    assert role_of(launcher, ["python", "-m", "workers.up"]) == "launcher device"
    gunicorn = ["python", "/bin/gunicorn", "web.wsgi:app"]
    assert (role_of(gunicorn, ["python", "-m", "workers.up"]), role_of(gunicorn, gunicorn)) == ("gunicorn", "web")
    assert role_of(["python", "-m", "workers.development_policy", "8001"], launcher) == "policy server 8001"


@pytest.mark.parametrize("own", [[], ["workers.main"], ["workers.launch"], ["workers.main device"]])
def test_a_starting_process_has_a_role_too(own: list[str]) -> None:
    assert role_of(own, [])


def test_an_exit_without_a_fault_is_found() -> None:
    log = """
12:00:00 WARNING up workers.processes.supervisor: redis-state died with exit code 0; starting it again in 0.5 s
12:00:01 WARNING up workers.processes.supervisor: gpu.soak.1 died with signal SIGKILL; starting it again in 0.5 s
12:00:02 ERROR web gunicorn.error: Worker (pid:17) was sent SIGKILL! Perhaps out of memory?
"""
    assert not unexpected_exits(log, {17})
    assert unexpected_exits(log, {18}) == {("a web process", "signal SIGKILL"): 1}, "no fault killed it"
    worse = """
12:00:03 WARNING up workers.processes.supervisor: gpu.soak.1 died with signal SIGSEGV; starting it again in 0.5 s
12:00:04 WARNING up workers.processes.supervisor: gpu.soak.1 died with signal SIGSEGV; starting it again in 1.0 s
12:00:05 WARNING up workers.processes.supervisor: cpu.soak.0 died with exit code 0; starting it again in 0.5 s
12:00:06 ERROR web gunicorn.error: Worker (pid:18) exited with code 1.
"""
    assert unexpected_exits(log + worse, {17}) == {
        ("gpu.soak.1", "signal SIGSEGV"): 2,
        ("cpu.soak.0", "exit code 0"): 1,
        ("a web process", "exit code 1"): 1,
    }


def log_templates() -> str:
    """Return the string literals of the processes under test, a line each, with placeholders filled in."""
    lines = []
    for file in (path for package in ("tasks", "workers") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines += [re.sub(r"%[.\d]*[df]", "1", node.value).replace("%s", text) for text in ("", "1")]
            elif isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
                lines.append("".join(parts))
    return "\n".join(lines)


def test_the_log_patterns_match_lines_that_the_system_writes() -> None:
    """A reworded log line would otherwise hide recoveries and abandoned processes from the report."""
    log = log_templates()
    missing = [
        name for name, pattern in LOG_PATTERNS.items() if "Traceback" not in pattern and not re.search(pattern, log)
    ]
    assert not missing
    assert PUT_BACK.search(log)
    assert " died with " in log
    assert " is not started again" in log


class NoApi:
    def set(self, **_knobs: object) -> None:
        pass


class BrokenSystem(System):
    """A system whose processes cannot be listed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.api = NoApi()  # type: ignore[assignment]

    def parts(self) -> list[Part]:
        raise IndexError("list index out of range")


@pytest.fixture
def accounting() -> Accounting:
    return Accounting()


def wait_for_finding(accounting: Accounting, where: str) -> None:
    wait_until(
        lambda: any((each.check, each.where) == ("soak", where) for each in accounting.findings),
        lambda: f"a finding about the {where}: {accounting.findings}",
    )


def test_an_error_of_the_resource_monitor_is_a_finding(accounting: Accounting, tmp_path: Path) -> None:
    monitor = ResourceMonitor(BrokenSystem(tmp_path), accounting)
    monitor.start()
    wait_for_finding(accounting, "resource monitor")
    monitor.end()
    assert not is_consistent(accounting)


def test_an_error_of_the_fault_injector_is_a_finding(
    accounting: Accounting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.soak.fault_injector.FIRST_S", 0.0)
    faults = FaultInjector(BrokenSystem(tmp_path), accounting, LostMoments(), 1, 0.1, lambda _: None)
    faults.start()
    wait_for_finding(accounting, "faults")
    faults.end()


def test_an_error_of_a_load_client_is_a_finding(accounting: Accounting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.soak.load_clients.draw_job", lambda *_: 1 // 0)
    clients = LoadClients("http://127.0.0.1:1", accounting, LostMoments(), 1, 1)
    clients.start()
    wait_for_finding(accounting, "load client 0")
    clients.end(PATIENCE_S)
    (found,) = accounting.findings
    assert "ZeroDivisionError" in found.problem


def test_a_load_client_that_does_not_end_is_a_finding(accounting: Accounting, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def draw_slowly(*_: object) -> None:
        has_begun.set()
        may_end.wait(PATIENCE_S)

    monkeypatch.setattr("bench.soak.load_clients.draw_job", draw_slowly)
    clients = LoadClients("http://127.0.0.1:1", accounting, LostMoments(), 1, 1)
    clients.start()
    assert has_begun.wait(PATIENCE_S)
    clients.end(0)
    found = [(each.check, each.where, each.problem) for each in accounting.findings]
    may_end.set()
    clients.end(PATIENCE_S)
    assert found == [("soak", "load client 0", "the thread still runs 0 s after the last fault")]


def test_unmeasured_memory_of_a_long_run_is_a_finding() -> None:
    assert Run(7, 2.0, "today").unmeasured() == []
    run = Run(7, 10.0, "today")
    assert run.unmeasured() == ["memory", "descriptors"]
    for listed in (run.memory, run.descriptors):
        listed.append(Line("web #1", growth_of(samples(600, 0.0))))
    assert run.unmeasured() == []
