"""Items with several trials: each trial runs and is cached separately, and the item gets a single outcome."""

from itertools import pairwise

import pytest

from tasks.errors import InvalidRequest
from tests.support.fleet import Fleet

TRIALS = {
    "trials": 3,
    "stages": [{"name": "run", "pool": "device"}, {"name": "mean", "pool": "cpu", "grouped": True}],
}


def test_every_trial_is_run_and_a_client_reads_one_row_per_item(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = fleet.submit({"x": 1, "id": "a"}, {"x": 2, "id": "b", "group_id": "g"}, spec=TRIALS)
    assert fleet.job(job).total == 2
    done = fleet.finish(job, device, cpu)
    assert (done.state, done.total, done.ok, done.failed) == ("done", 2, 2, 0)
    assert sorted(fleet.computed()) == ["1"] * 3 + ["2"] * 3
    rows = fleet.rows(job)
    assert [(row["index"], row["id"], row["group_id"]) for row in rows] == [(0, "a", None), (1, "b", "g")]
    assert [row["parts"] for row in rows] == [{"trials": 3.0}] * 2
    assert list(fleet.core.results.read(done, 1)) == rows[1:]
    assert b"".join(fleet.core.results.lines(done)).count(b"\n") == 2


def test_trials_are_spread_over_all_devices(fleet: Fleet) -> None:
    hands = [fleet.hire(index=index) for index in range(3)]
    job = fleet.submit({"x": 1, "cost_s": 0.01}, spec=TRIALS | {"cost_s": 1.0})
    assert [len(hand.take()) for hand in hands] == [1, 1, 1]
    assert fleet.job(job).ok == 0


def test_an_item_fails_only_if_every_trial_failed(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = fleet.submit(*[{"x": x} for x in range(20)], spec=TRIALS | {"failure_rate": 0.6})
    done = fleet.finish(job, device, cpu)
    rows = fleet.rows(job)
    ran = {int(row["parts"]["trials"]) for row in rows if row["valid"]}
    assert ran == {1, 2, 3}
    assert {row["error"]["type"] for row in rows if not row["valid"]} == {"simulated_failure"}
    assert (done.ok, done.failed) == (sum(row["valid"] for row in rows), sum(not row["valid"] for row in rows))
    assert done.failed > 0
    assert done.reasons == {"simulated_failure": done.failed}


def test_trials_are_cached_separately_so_that_additional_trials_run_alone(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    counts = []
    for trials in (1, 3, 3, 5):
        job = fleet.submit({"x": 1}, spec=TRIALS | {"trials": trials, "cacheable": True})
        fleet.finish(job, device, cpu)
        counts.append(len(fleet.computed()))
    assert [after - before for before, after in pairwise([0, *counts])] == [1, 2, 0, 2]


def test_an_item_is_cached_when_all_its_trials_are(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    fleet.finish(fleet.submit({"x": 1}, spec=TRIALS | {"cacheable": True}), device, cpu)
    again = fleet.submit({"x": 1}, spec=TRIALS | {"cacheable": True})
    assert fleet.finish(again, device, cpu).cached == 1
    assert [row["cached"] for row in fleet.rows(again)] == [True]
    assert fleet.core.explain(again, 0)["cached"]


def test_only_the_trials_that_a_killed_worker_had_begun_run_again(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = fleet.submit({"x": 1}, spec=TRIALS | {"batch_items": 1, "cacheable": True})
    (chunk, *_) = device.take()
    device.begin([chunk])
    fleet.core.ledger.reclaim(device.runner.incarnation, proven=True)
    device.leave()
    other = fleet.hire(index=1)
    assert fleet.finish(job, other, cpu).ok == 1
    assert fleet.computed() == ["1"] * 3


def test_retry_runs_an_item_with_every_trial_again(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = fleet.submit({"x": 1, "fail": True}, {"x": 2}, spec=TRIALS)
    fleet.finish(job, device, cpu)
    assert fleet.core.retry_failed(job) == 1
    done = fleet.finish(job, device, cpu)
    assert (done.ok, done.failed) == (1, 1)


def test_a_cancelled_job_has_a_row_for_every_item(fleet: Fleet) -> None:
    job = fleet.submit({"x": 1}, {"x": 2}, spec=TRIALS)
    fleet.core.cancel(job)
    assert [(row["index"], row["status"]) for row in fleet.rows(job)] == [(0, "cancelled"), (1, "cancelled")]


def test_more_runs_than_a_small_job_has_are_refused(fleet: Fleet) -> None:
    with pytest.raises(InvalidRequest, match="split the items into several jobs"):
        fleet.submit(*[{"x": x} for x in range(11)], spec=TRIALS | {"trials": 1000})
    with pytest.raises(InvalidRequest, match="must be grouped"):
        fleet.submit({"x": 1}, spec={"trials": 2})
