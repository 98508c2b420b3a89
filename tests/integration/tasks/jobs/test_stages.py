"""Jobs of several stages: each item passes them in order, and a grouped stage runs complete groups only."""

import pytest

from tasks.jobs.model import Result
from tasks.jobs.state.outcome import settle
from tests.support.fleet import Fleet

CACHED = {"cacheable": True}
PIPELINE = {
    "stages": [
        {"name": "rule", "pool": "cpu"},
        {"name": "judge", "pool": "api"},
        {"name": "group", "pool": "cpu", "grouped": True},
    ]
}


def test_items_pass_their_stages_each_in_its_pool(fleet: Fleet) -> None:
    cpu, api = fleet.hire("cpu"), fleet.hire("api")
    job = fleet.submit(*[{"x": x, "group_id": f"g{x % 2}"} for x in range(6)], spec=PIPELINE)
    api.work()
    assert fleet.computed() == [], "judging waits for the rule"
    cpu.work()
    assert fleet.job(job).ok == 0
    api.work()
    cpu.work()
    assert fleet.job(job).state == "done"
    assert [row["parts"]["members"] for row in fleet.rows(job)] == [3.0] * 6
    assert {row["worker"] for row in fleet.rows(job)} == {"cpu.node1.0"}


def test_a_group_runs_as_soon_as_it_is_complete(fleet: Fleet) -> None:
    cpu, device = fleet.hire("cpu"), fleet.hire()
    spec = {
        "batch_items": 2,
        "cost_s": 0.18,
        "stages": [{"name": "score", "pool": "device"}, {"name": "group", "grouped": True}],
    }
    job = fleet.submit(*[{"x": x, "group_id": f"g{x // 2}", "cost_s": 0} for x in range(4)], spec=spec)
    (chunk, *_) = device.take()
    assert chunk.items == (0, 1)
    device.begin([chunk])
    results = [settle(i, {"group_id": "g0"}, Result(score=float(i), value={}, next="group")) for i in chunk.items]
    device.core.ledger.commit(chunk, "w", 0.1, results, over=True)
    cpu.work()
    assert (fleet.job(job).state, fleet.job(job).ok) == ("running", 2)
    assert [row["parts"]["mean"] for row in fleet.rows(job)] == [0.5, 0.5]


def test_a_failed_member_neither_delays_its_group_nor_counts_in_it(fleet: Fleet) -> None:
    cpu, api = fleet.hire("cpu"), fleet.hire("api")
    job = fleet.submit(*[{"x": x, "group_id": "g", "fail": x == 1} for x in range(3)], spec=PIPELINE)
    for hand in (cpu, api, cpu):
        hand.work()
    rows = fleet.rows(job)
    assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
    assert rows[1]["error"]["type"] == "simulated_failure"
    assert rows[0]["parts"]["members"] == 2.0
    assert (fleet.job(job).state, fleet.job(job).failed) == ("done", 1)


def test_retry_computes_groups_with_retried_items_again(fleet: Fleet) -> None:
    cpu, api = fleet.hire("cpu"), fleet.hire("api")
    job = fleet.submit(
        {"x": 0, "group_id": "a", "fail": True}, {"x": 1, "group_id": "a"}, {"x": 2, "group_id": "b"}, spec=PIPELINE
    )
    for hand in (cpu, api, cpu):
        hand.work()
    assert fleet.core.retry_failed(job) == 2
    for hand in (cpu, api, cpu):
        hand.work()
    assert (fleet.job(job).state, fleet.job(job).ok, fleet.job(job).failed) == ("done", 2, 1)


def test_a_cached_result_continues_with_the_stages_of_its_own_job(fleet: Fleet) -> None:
    hand, cpu = fleet.hire(), fleet.hire("cpu")
    two = CACHED | {"stages": [{"name": "run", "pool": "device"}, {"name": "post", "pool": "cpu"}]}
    for spec in (CACHED, two, CACHED, two):
        job = fleet.submit({"x": 1}, {"x": 2}, spec=spec)
        fleet.work(hand, cpu)
        assert (fleet.job(job).state, fleet.job(job).ok) == ("done", 2)


def test_groups_of_different_jobs_do_not_mix_and_large_groups_are_not_split(fleet: Fleet) -> None:
    cpu, api = fleet.hire("cpu"), fleet.hire("api")
    spec = PIPELINE | {"batch_items": 2}
    jobs = [fleet.submit(*[{"x": x + 10 * n, "group_id": "a"} for x in range(5)], spec=spec) for n in range(3)]
    fleet.work(cpu, api)
    for job in jobs:
        rows = fleet.rows(job)
        assert [row["parts"]["members"] for row in rows] == [5.0] * 5
        assert rows[0]["parts"]["mean"] == pytest.approx(sum(row["score"] for row in rows) / 5)


def test_a_retry_of_many_pages_with_groups_across_them_ends(fleet: Fleet) -> None:
    cpu, api = fleet.hire("cpu"), fleet.hire("api")
    many = [{"x": x, "group_id": f"g{x % 60}", "fail": True} for x in range(450)]
    job = fleet.submit(*many, spec=PIPELINE)
    fleet.work(cpu, api)
    assert fleet.job(job).failed == 450
    assert fleet.core.retry_failed(job) == 450
    fleet.work(cpu, api)
    assert (fleet.job(job).state, fleet.job(job).failed) == ("done", 450)
