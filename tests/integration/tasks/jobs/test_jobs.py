"""The lifecycle of a job on the real ledger: submit, run, retry, cancel, pause and expiry, step by step."""

import threading
from typing import Any

import pytest

from config import keys
from tasks.errors import Conflict, InvalidRequest, UnknownJob, UnknownKind
from tasks.jobs.model import JobRequest
from tasks.jobs.state.ledger import Reopened
from tests.support.fleet import Fleet
from tests.support.programs import wait_until

CACHED = {"cacheable": True}


def items(*values: object) -> list[dict[str, Any]]:
    return [{"id": f"item-{value}", "x": value} for value in values]


def test_every_item_has_one_outcome_in_input_order(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(*range(250)))
    assert fleet.job(job).state == "queued"
    hand.work()
    done = fleet.job(job)
    assert (done.state, done.total, done.ok, done.failed, done.cached) == ("done", 250, 250, 0, 0)
    rows = fleet.rows(job)
    assert [row["index"] for row in rows] == list(range(250))
    assert [row["id"] for row in rows] == [f"item-{x}" for x in range(250)]
    assert [row["value"]["x"] for row in rows] == list(range(250))
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["valid"] and 0 <= row["score"] < 1 for row in rows)
    assert done.workers["gpu.node1.0"]["items"] == 250
    events = [fields["event"] for _, fields in fleet.core.results.events(job, "0", 1)]
    assert (events[0], events[1], events[-1]) == ("queued", "running", "done")


def test_a_fully_cached_job_is_done_when_submit_returns(fleet: Fleet) -> None:
    hand = fleet.hire()
    fleet.submit(*items(*range(20)), spec=CACHED)
    hand.work()
    again = fleet.submit(*items(*reversed(range(20))), spec=CACHED)
    job = fleet.job(again)
    assert (job.state, job.ok, job.cached) == ("done", 20, 20)
    assert [row["value"]["x"] for row in fleet.rows(again)] == list(reversed(range(20)))
    assert len(fleet.computed()) == 20


def test_only_items_missing_from_the_cache_are_computed(fleet: Fleet) -> None:
    hand = fleet.hire()
    fleet.submit(*items(0, 1, 2), spec=CACHED)
    hand.work()
    job = fleet.submit(*items(0, 7, 1, 8, 2), spec=CACHED)
    hand.work()
    assert [row["cached"] for row in fleet.rows(job)] == [True, False, True, False, True]
    assert fleet.computed() == ["0", "1", "2", "7", "8"]


def test_equal_items_of_one_job_are_computed_once(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(*[x % 3 for x in range(30)]), spec=CACHED | {"batch_items": 4})
    hand.work()
    assert sorted(fleet.computed()) == ["0", "1", "2"]
    assert [row["value"]["x"] for row in fleet.rows(job)] == [x % 3 for x in range(30)]


@pytest.mark.parametrize(("mode", "computed"), [("use", 2), ("refresh", 4), ("off", 4)])
def test_the_request_selects_the_cache_mode(fleet: Fleet, mode: str, computed: int) -> None:
    hand = fleet.hire()
    fleet.submit(*items(1, 2), spec=CACHED)
    hand.work()
    job = fleet.submit(*items(1, 2), spec=CACHED, cache=mode)
    hand.work()
    assert fleet.job(job).ok == 2
    assert len(fleet.computed()) == computed


def test_a_failure_has_a_reason_and_no_score_and_is_never_cached(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit({"x": 1}, {"x": 2, "fail": True}, spec=CACHED)
    hand.work()
    good, bad = fleet.rows(job)
    assert good["valid"]
    assert (bad["status"], bad["score"], bad["valid"]) == ("failed", None, False)
    assert bad["error"] == {
        "type": "simulated_failure", "message": "This item was told to fail.", "retryable": False,
    }  # fmt: skip
    assert fleet.job(job).reasons == {"simulated_failure": 1}
    again = fleet.submit({"x": 1}, {"x": 2, "fail": True}, spec=CACHED)
    assert fleet.job(again).cached == 1


def test_a_failed_item_gets_the_requested_fill_score_and_stays_invalid(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit({"x": 1, "fail": True}, on_error={"fill": -1.0})
    hand.work()
    (row,) = fleet.rows(job)
    assert (row["score"], row["valid"], row["status"]) == (-1.0, False, "failed")


@pytest.mark.parametrize("options", [{"max_failed_share": 0.5}, {"on_error": "fail"}])
def test_a_job_with_too_many_failed_items_fails(fleet: Fleet, options: dict[str, Any]) -> None:
    hand = fleet.hire()
    job = fleet.submit(*[{"x": x, "fail": x < 3} for x in range(5)], **options)
    hand.work()
    assert (fleet.job(job).state, fleet.job(job).reason) == ("failed", "too_many_failed")
    assert fleet.job(job).reasons["simulated_failure"] >= 1


def test_a_job_with_few_failures_is_done(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*[{"x": x, "fail": x < 2} for x in range(5)], max_failed_share=0.5)
    hand.work()
    assert (fleet.job(job).state, fleet.job(job).ok, fleet.job(job).failed) == ("done", 3, 2)


def test_a_transient_failure_is_retried(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit({"x": 1, "fail_times": 1}, {"x": 2, "fail_times": 99})

    def look() -> bool:
        fleet.tick()
        hand.work()
        return fleet.job(job).state == "done"

    wait_until(look, "the retries end")
    passed, failed = fleet.rows(job)
    assert (passed["status"], passed["attempts"]) == ("ok", 2)
    assert (failed["status"], failed["attempts"], failed["error"]["type"]) == ("failed", 3, "simulated_outage")


def test_a_nan_score_is_a_failure() -> None:
    from tasks.jobs.model import Result
    from tasks.jobs.state.outcome import settle

    settled = settle(0, {}, Result(score=float("nan")))
    assert (settled.status, settled.error_type) == ("failed", "not_a_number")


def test_a_deadline_ends_the_job_and_unfinished_items_are_timed_out(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(*range(4)), spec={"cost_s": 0.75}, deadline_s=0.2)
    hand.take()

    def look() -> bool:
        fleet.tick()
        return not fleet.job(job).is_active

    wait_until(look, "the deadline passes")
    assert (fleet.job(job).state, fleet.job(job).reason) == ("done", "deadline")
    assert {row["status"] for row in fleet.rows(job)} == {"timed_out"}


def test_an_items_own_deadline_ends_its_retries(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline lies after the pause before the second try, and before the end of the pause that follows it."""
    monkeypatch.setattr("tasks.jobs.execution.retry.FIRST_RETRY_S", 200.0)  # the next pause is 400 s
    hand, state = fleet.hire(), fleet.core.state
    job = fleet.submit({"x": 1, "fail_times": 99}, {"x": 2, "fail_times": 1}, item_deadline_s=300)

    def look() -> bool:
        for parked in state.zrange(keys.parked(), 0, -1):  # end the pause without waiting for it
            state.zadd(keys.parked(), {parked: 1})
        fleet.tick()
        hand.work()
        return fleet.job(job).state == "done"

    wait_until(look, "the retries end")
    late, passed = fleet.rows(job)
    assert (late["status"], late["error"]["type"], late["attempts"]) == ("timed_out", "timed_out", 2)
    assert "last error: This attempt was told to fail." in late["error"]["message"]
    assert passed["status"] == "ok"
    assert fleet.job(job).reasons == {"timed_out": 1}


# --- cancel ---


def test_a_job_cancelled_before_a_worker_takes_it_computes_nothing(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(1, 2))
    assert fleet.core.cancel(job) == "cancelled"
    hand.work()
    assert {row["status"] for row in fleet.rows(job)} == {"cancelled"}
    assert fleet.computed() == []


def test_a_job_cancelled_while_it_runs_keeps_its_finished_items(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(1, 2, 3), spec={"batch_items": 1, "cost_s": 0.1})
    chunk, *_ = hand.take()
    hand.begin([chunk])
    from tasks.jobs.model import Result
    from tasks.jobs.state.outcome import settle

    hand.core.ledger.commit(chunk, "w", 0.1, [settle(0, {"id": "a"}, Result(score=1.0))])
    fleet.core.cancel(job)
    assert hand.begin([chunk]) == "x" * len(chunk.items), "the rest is dropped when the worker asks"
    counted, state = hand.core.ledger.commit(chunk, "w", 0.1, [settle(1, {}, Result(score=1.0))], over=True)
    assert (counted, state) == (0, "cancelled"), "late results do not count"
    assert [row["status"] for row in fleet.rows(job)] == ["ok", "cancelled", "cancelled"]
    assert fleet.job(job).ok == 1


def test_a_paused_job_can_be_cancelled(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(1, 2))
    fleet.core.pause(job)
    assert fleet.core.cancel(job) == "cancelled"
    hand.work()
    assert fleet.computed() == []


def test_a_job_can_be_cancelled_while_a_retry_reopens_it(fleet: Fleet) -> None:
    """The process that retried it may be dead, and the job must not remain in the state `reopening`."""
    hand = fleet.hire()
    job = fleet.submit({"x": 1, "fail": True}, {"x": 2})
    hand.work()
    assert fleet.core.ledger.reopen(job, [Reopened(0, "failed", "simulated_failure")]) == 1
    assert fleet.job(job).state == "reopening"
    assert fleet.core.state.zscore(keys.expiry(), job), "the job keeps its expiry time"
    assert fleet.core.cancel(job) == "cancelled"
    assert [row["status"] for row in fleet.rows(job)] == ["cancelled", "ok"]
    assert (fleet.job(job).ok, fleet.job(job).failed) == (1, 0)


def test_cancelling_an_ended_job_changes_nothing(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(1))
    hand.work()
    assert fleet.core.cancel(job) == "done"
    with pytest.raises(UnknownJob):
        fleet.core.cancel("no-such-job")


# --- submission ---


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"items": [{"x": 1}, {"cost_s": "long"}]}, "items[1].cost_s"),
        ({"items": [{"y": 1}]}, "items[0].y"),
        ({"items": [{"x": 1}], "spec": {"cost_s": -1}}, "spec.cost_s"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_stored(fleet: Fleet, body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        fleet.core.submitter.submit(JobRequest(kind="simulated", **body))
    assert error.value.field == field
    assert field in str(error.value)
    assert fleet.core.state.keys("assay:job*") == []


def test_an_unknown_kind_is_named(fleet: Fleet) -> None:
    with pytest.raises(
        UnknownKind, match="There is no job kind 'alchemy'; kinds are benchmark, inference, judge, rollout, score, sim"
    ):
        fleet.core.submitter.submit(JobRequest(kind="alchemy", items=[{}]))


def test_the_same_idempotency_key_twenty_times_at_once_is_one_job(fleet: Fleet) -> None:
    hand = fleet.hire()
    jobs: list[str] = []
    threads = [
        threading.Thread(target=lambda: jobs.append(fleet.submit(*items(1, 2, 3), key="once"))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(jobs) == 20
    assert len(set(jobs)) == 1
    hand.work()
    assert fleet.job(jobs[0]).ok == 3
    assert len(fleet.computed()) == 3
    assert fleet.core.state.zcard(keys.jobs()) == 1


def test_the_same_idempotency_key_with_another_body_is_a_conflict(fleet: Fleet) -> None:
    fleet.submit(*items(1), key="once")
    with pytest.raises(Conflict, match="used for a different request"):
        fleet.submit(*items(2), key="once")


def test_an_interrupted_submit_is_completed_by_repeating_it(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = fleet.hire()

    def cut_off(*_: object) -> bool:
        raise ConnectionError("the web process was killed here")

    with monkeypatch.context() as broken:
        broken.setattr(type(fleet.core.ledger), "create", cut_off)
        with pytest.raises(ConnectionError):
            fleet.submit(*items(1, 2), key="again")
    assert fleet.core.state.zcard(keys.jobs()) == 0, "nothing half-written is visible"
    job = fleet.submit(*items(1, 2), key="again")
    hand.work()
    assert fleet.job(job).state == "done"
    assert all(
        fleet.core.state.ttl(key) != -1 or key == keys.job_blocks(job) for key in fleet.core.state.keys("*:blocks")
    )


# --- retry, pause, expiry ---


def test_retry_runs_only_the_failed_items_again(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*[{"x": x, "fail": x % 2 == 1} for x in range(6)])
    hand.work()
    assert fleet.job(job).failed == 3
    assert fleet.core.retry_failed(job) == 3
    assert (fleet.job(job).state, fleet.job(job).ok, fleet.job(job).failed) == ("running", 3, 0)
    hand.work()
    after = fleet.job(job)
    assert (after.state, after.ok, after.failed, after.epoch) == ("done", 3, 3, 1)
    assert after.reasons == {"simulated_failure": 3}
    assert len(fleet.computed()) == 6 + 3


def test_retry_of_a_job_that_ended_early_runs_the_items_it_never_started(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(
        *[{"x": x, "fail_times": 9 if x == 0 else 0} for x in range(6)],
        on_error="fail",
        spec={"batch_items": 1, "cost_s": 0.2},
    )
    (chunk, *_) = hand.take()
    from tasks.jobs.model import ItemError, Result
    from tasks.jobs.state.outcome import settle

    hand.begin([chunk])
    failure = settle(0, {}, Result(error=ItemError("broken", "no")))
    hand.core.ledger.commit(chunk, "w", 0.1, [failure], over=True)
    assert (fleet.job(job).state, fleet.job(job).ok) == ("failed", 0)
    assert fleet.core.retry_failed(job) == 6


def test_two_concurrent_requests_with_the_same_key_become_one_complete_job(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request has written its payload, and finds more in the cache, before the first creates the job."""
    hand = fleet.hire()
    create = type(fleet.core.ledger).create
    overtaken: list[str] = []

    def create_late(ledger: Any, *arguments: Any) -> bool:
        if not overtaken:
            overtaken.append("once")
            other = fleet.submit(*items(1, 2), spec=CACHED)  # fills the cache
            hand.work()
            assert fleet.job(other).ok == 2
            overtaken.append(fleet.submit(*items(1, 2), spec=CACHED, key="twice"))
        return bool(create(ledger, *arguments))

    monkeypatch.setattr(type(fleet.core.ledger), "create", create_late)
    job = fleet.submit(*items(1, 2), spec=CACHED, key="twice")
    assert overtaken[1] == job
    hand.work()
    assert (fleet.job(job).state, fleet.job(job).ok) == ("done", 2)
    assert fleet.core.state.ttl(keys.job_outcomes(job, "0")) == -1
    assert fleet.core.state.keys("*~*") == []


def test_a_broken_kind_fails_its_items_and_keeps_no_chunk(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(1, 2))

    def broken(*_: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr("tasks.simulated.stages.SleepStage.key", broken)
    hand.work()
    assert [row["error"]["type"] for row in fleet.rows(job)] == ["internal_error"] * 2
    assert [row["id"] for row in fleet.rows(job)] == ["item-1", "item-2"]
    assert fleet.core.state.smembers(keys.holders()) == set()


def test_a_cancelled_job_is_retried(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(1, 2))
    fleet.core.cancel(job)
    hand.work()
    assert (fleet.job(job).state, fleet.computed()) == ("cancelled", [])
    assert fleet.core.retry_failed(job) == 2
    assert fleet.finish(job, hand).ok == 2


def test_an_active_job_is_not_retried(fleet: Fleet) -> None:
    job = fleet.submit(*items(1))
    with pytest.raises(Conflict, match="only a job that has ended"):
        fleet.core.retry_failed(job)


def test_a_paused_job_waits_until_it_is_resumed(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(1, 2))
    fleet.core.pause(job)
    hand.work()
    assert (fleet.job(job).state, fleet.job(job).paused, fleet.computed()) == ("queued", True, [])
    fleet.core.resume(job)
    hand.work()
    assert fleet.job(job).state == "done"


@pytest.mark.parametrize("draining", [False, True])
def test_a_paused_or_drained_queue_gets_no_chunks_and_its_chunks_move_to_other_queues(
    fleet: Fleet, draining: bool
) -> None:
    first, second = fleet.hire(index=0), fleet.hire(index=1)
    job = fleet.submit(*items(*range(8)), spec={"cost_s": 0.01})
    first.core.dispatcher.forget_fleet()
    fleet.core.pause_queue(first.queue, draining)
    first.work()
    assert fleet.computed() == []
    second.work()
    assert fleet.job(job).state == "done"
    assert list(fleet.job(job).workers) == [second.worker.name]
    fleet.core.resume_queue(first.queue)
    other = fleet.submit(*items(9))
    first.work()
    assert fleet.job(other).state == "done"


def test_an_expired_job_leaves_nothing_behind(fleet: Fleet, state: Any) -> None:
    hand, cpu = fleet.hire(), fleet.hire("cpu")
    before = set(state.keys("assay:*"))
    stages = [{"name": "one"}, {"name": "two", "grouped": True}]
    for spec in ({}, CACHED, {"stages": stages}):
        job = fleet.submit({"x": 1}, {"x": 2, "fail": True}, {"x": 3, "group_id": "g"}, spec=spec)
        hand.work()
        cpu.work()
        assert fleet.job(job).state == "done"
    for job in state.zrange(keys.jobs(), 0, -1):
        state.zadd(keys.expiry(), {job: 1})
    fleet.tick()
    fleet.tick()  # the second tick would delete files, which this small job does not have
    left = {key for key in state.keys("assay:*") if not key.startswith(("assay:cache:", "assay:worker"))} - before
    assert left <= {keys.queues(), keys.sequence(), keys.tick(), keys.clock(), keys.totals(), keys.happened()}
    with pytest.raises(UnknownJob):
        fleet.job(job)
