"""Open-ended jobs: no total, items appended while they run, old outcomes forgotten."""

import pytest

from config import keys
from tasks.errors import Conflict, InvalidRequest, UnknownJob
from tasks.jobs.model import JobHead
from tests.fleet import Fleet

HEAD = JobHead(kind="simulated")


def test_items_are_appended_while_it_runs_and_it_ends_when_it_is_closed(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.core.door.open(HEAD, keep_items=100)
    assert fleet.core.door.append(job, [{"x": 0}, {"x": 1}]) == 0
    hand.work()
    assert (fleet.job(job).state, fleet.job(job).ok, fleet.job(job).open) == ("running", 2, True)
    assert fleet.core.door.append(job, [{"x": 2}]) == 2
    assert fleet.core.door.close(job) == "running"
    hand.work()
    assert (fleet.job(job).state, fleet.job(job).ok, fleet.job(job).total) == ("done", 3, 3)
    assert [row["value"]["x"] for row in fleet.rows(job)] == [0, 1, 2]


def test_an_append_that_is_repeated_appends_nothing_twice(fleet: Fleet) -> None:
    job = fleet.core.door.open(HEAD, keep_items=100)
    items = [{"x": x} for x in range(1200)]
    assert [fleet.core.door.append(job, items, "token") for _ in range(3)] == [0, 0, 0]
    assert fleet.job(job).total == 1200


def test_what_it_no_longer_keeps_leaves_nothing_in_redis(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.core.door.open(HEAD, keep_items=10)
    for start in range(0, 9000, 1500):
        fleet.core.door.append(job, [{"x": x} for x in range(start, start + 1500)])
        hand.work()
    assert (fleet.job(job).ok, fleet.job(job).trimmed) == (9000, 8990)
    assert fleet.core.state.hlen(keys.job_outcomes(job, "0")) == 10
    assert fleet.core.state.hlen(keys.job_blocks(job)) == 10
    assert fleet.core.state.keys(keys.job_passed(job, "run", "*")) == [keys.job_passed(job, "run", "1")]
    assert [row["index"] for row in fleet.rows(job)] == list(range(8990, 9000))
    fleet.core.door.close(job)
    assert fleet.job(job).state == "done"


def test_an_item_without_outcome_keeps_what_came_after_it(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.core.door.open(HEAD, keep_items=1)
    fleet.core.door.append(job, [{"x": 0, "fail_times": 1}] + [{"x": x} for x in range(1, 20)])
    hand.work()
    assert (fleet.job(job).ok, fleet.job(job).trimmed) == (19, 0)


def test_a_failed_item_counts_and_does_not_end_it(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.core.door.open(JobHead(kind="simulated", max_failed_share=0.0), keep_items=10)
    fleet.core.door.append(job, [{"x": 0, "fail": True}])
    hand.work()
    assert (fleet.job(job).state, fleet.job(job).failed) == ("running", 1)
    fleet.core.door.close(job)
    assert fleet.job(job).state == "failed"


def test_what_is_wrong_is_said(fleet: Fleet) -> None:
    job = fleet.core.door.open(HEAD, keep_items=10)
    with pytest.raises(InvalidRequest, match=r"items\[1\]\.y"):
        fleet.core.door.append(job, [{"x": 1}, {"y": 2}])
    fleet.core.door.close(job)
    with pytest.raises(Conflict, match="takes no more items"):
        fleet.core.door.append(job, [{"x": 1}])
    with pytest.raises(UnknownJob):
        fleet.core.door.append("nothing", [{"x": 1}])
    grouped = {"stages": [{"name": "run"}, {"name": "group", "grouped": True}]}
    with pytest.raises(InvalidRequest, match="grouped"):
        fleet.core.door.open(JobHead(kind="simulated", spec=grouped), keep_items=10)
