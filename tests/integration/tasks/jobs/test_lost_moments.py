"""Jobs when Redis loses its last moment, when its clock is set back, and when a process dies in a retry."""

import logging
import threading

import pytest

from config import keys
from tasks.errors import RedisUnavailable
from tasks.jobs.model import JobRequest, Result
from tasks.jobs.state.ledger import Reopened
from tasks.jobs.state.outcome import settle
from tasks.jobs.state.payloads import BLOCK_ITEMS
from tasks.redis_clock import read_time
from tests.support.fleet import Fleet
from tests.support.programs import wait_until
from tests.support.rollback import roll_back, save

HOUR_S = 3600


def items(*numbers: int, **more: object) -> list[dict[str, object]]:
    return [{"id": f"item-{number}", "x": number, **more} for number in numbers]


def first_stage(fleet: Fleet, job: str) -> str:
    return str(fleet.core.store.stages(job)[0]["name"])


def test_a_chunk_whose_end_was_lost_runs_again(fleet: Fleet) -> None:
    url = fleet.settings.redis_url
    hand = fleet.hire()
    job = fleet.submit(*items(1, 2, 3), spec={"cost_s": 0.3}, cache="off")
    running = threading.Thread(target=hand.work)
    running.start()
    wait_until(lambda: fleet.core.state.smembers(keys.holders()), "a chunk is taken")
    dump = save(url)
    running.join()
    assert fleet.job(job).state == "done"
    roll_back(url, dump)
    assert fleet.core.ledger.held(hand.runner.incarnation), "Redis has forgotten the end of the chunk"
    assert hand.runner.held.compare() >= 1
    assert fleet.finish(job, hand).ok == 3
    assert hand.runner.held.compare() == 0


def test_the_thread_of_a_process_returns_a_chunk_whose_end_was_lost(fleet: Fleet) -> None:
    url = fleet.settings.redis_url
    hand = fleet.hire()
    job = fleet.submit(*items(1), spec={"cost_s": 0.3}, cache="off")
    running = threading.Thread(target=hand.work)
    running.start()
    wait_until(lambda: fleet.core.state.smembers(keys.holders()), "a chunk is taken")
    dump = save(url)
    running.join()
    roll_back(url, dump)
    wait_until(lambda: not fleet.core.state.smembers(keys.holders()), "the process returns it by itself")
    assert fleet.finish(job, hand).ok == 1


def test_a_chunk_that_redis_has_forgotten_changes_nothing_when_it_ends(fleet: Fleet) -> None:
    url = fleet.settings.redis_url
    fleet.submit(*items(1, 2, 3), cache="off")
    hand = fleet.hire()
    dump = save(url)
    (chunk,) = hand.take("first")
    roll_back(url, dump)
    (again,) = hand.take("second")
    assert again.id != chunk.id, "an id is never used twice"
    settled = [settle(index, {}, Result(score=1.0)) for index in chunk.items]
    assert fleet.core.ledger.commit(chunk, "w", 0.1, settled, over=True)[0] == 0
    assert fleet.core.ledger.commit(again, "w", 0.1, settled, over=True) == (3, "done")


def test_a_holder_whose_take_was_lost_does_not_end_the_chunk_of_the_next_holder(fleet: Fleet) -> None:
    url = fleet.settings.redis_url
    job = fleet.submit(*items(1, 2, 3), cache="off")
    hand = fleet.hire()
    fleet.core.dispatcher.forget_fleet()
    fleet.core.dispatcher.fill(hand.worker.pool)
    dump = save(url)
    (early,) = hand.take("first")
    roll_back(url, dump)
    (late,) = hand.take("second")
    assert late.id == early.id
    settled = [settle(index, {}, Result(score=1.0)) for index in early.items]
    assert fleet.core.ledger.commit(early, "w", 0.1, settled, over=True) == (0, "running")
    assert fleet.core.ledger.held(hand.runner.incarnation) == [(late.id, "second")]
    assert fleet.core.ledger.commit(late, "w", 0.1, settled, over=True) == (3, "done")
    assert fleet.job(job).ok == 3


def test_items_whose_commit_was_lost_are_pending_again_when_their_chunk_ends(fleet: Fleet) -> None:
    url = fleet.settings.redis_url
    hand = fleet.hire()
    job = fleet.submit(*items(1, 2, 3), cache="off")
    (chunk,) = hand.take()
    dump = save(url)
    fleet.core.ledger.commit(chunk, "w", 0.1, [settle(0, {}, Result(score=1.0))])
    roll_back(url, dump)
    rest = [settle(index, {}, Result(score=1.0)) for index in (1, 2)]
    assert fleet.core.ledger.commit(chunk, "w", 0.1, rest, over=True) == (2, "running")
    assert fleet.finish(job, hand).ok == 3
    assert fleet.computed() == ["1"]


def test_a_job_is_not_created_from_a_part_of_its_items(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    write = fleet.core.payloads.write

    def write_and_lose(job_id: str, rows: list[dict[str, object]]) -> int:
        blocks = write(job_id, rows)
        fleet.core.state.hdel(keys.job_blocks(job_id), "0")
        return blocks

    monkeypatch.setattr(fleet.core.payloads, "write", write_and_lose)
    request = JobRequest(kind="simulated", items=items(*range(2 * BLOCK_ITEMS)))
    with pytest.raises(RedisUnavailable, match="send it again"):
        fleet.core.submitter.submit(request, "key")
    monkeypatch.undo()
    job = fleet.core.submitter.submit(request, "key")
    assert fleet.finish(job, fleet.hire()).ok == 2 * BLOCK_ITEMS


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_job_that_stands_still_is_repaired(fleet: Fleet, caplog: pytest.LogCaptureFixture, by_hand: bool) -> None:
    job = fleet.submit(*items(1, 2, 3), cache="off")
    hand = fleet.hire()
    fleet.core.state.delete(keys.job_pending(job, first_stage(fleet, job)))  # a fault that no script causes
    hand.work()
    fleet.core.state.zadd(keys.active(), {job: 1})
    with caplog.at_level(logging.ERROR):
        if by_hand:
            assert fleet.core.repair(job) == 3
            assert fleet.core.repair(job) == 0
        else:
            fleet.tick()
            assert f"job {job} stood still: 3 items" in caplog.text
    assert fleet.finish(job, hand).ok == 3


def test_a_job_that_is_stuck_by_its_limit_of_calls_in_flight_is_repaired(fleet: Fleet) -> None:
    job = fleet.submit(*items(1, 2, 3), cache="off")
    stage = first_stage(fleet, job)
    fleet.core.state.hset(keys.job(job), mapping={f"most_out:{stage}": 2, f"out:{stage}": 2})
    hand = fleet.hire()
    hand.work()
    assert fleet.job(job).state == "queued"
    fleet.core.state.zadd(keys.active(), {job: 1})
    fleet.tick()
    assert fleet.finish(job, hand).ok == 3


def test_a_group_that_stands_still_is_repaired(fleet: Fleet) -> None:
    stages = [{"name": "one", "pool": "device"}, {"name": "two", "grouped": True}]
    rows = [{"id": str(n), "x": n, "group_id": "g"} for n in range(3)]
    job = fleet.submit(*rows, spec={"stages": stages}, cache="off")
    hand = fleet.hire()
    hand.work()
    assert fleet.core.state.delete(keys.job_pending(job, "two")) == 1  # a fault that no script causes
    cpu = fleet.hire("cpu")
    fleet.core.state.zadd(keys.active(), {job: 1})
    fleet.tick()
    assert fleet.finish(job, hand, cpu).ok == 3


def test_a_retry_that_was_cut_off_completes_by_itself(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(1, 2, 3, fail=True), cache="off")
    assert fleet.finish(job, hand).failed == 3
    assert fleet.core.ledger.reopen(job, [Reopened(0, "failed", "simulated_failure")]) == 1
    assert fleet.job(job).state == "reopening"
    fleet.tick()
    assert fleet.job(job).state == "reopening", "another process may be at it"
    fleet.core.state.hset(keys.job(job), "reopened_at", "1")
    fleet.core.state.zadd(keys.active(), {job: 1})
    fleet.tick()
    assert fleet.job(job).state == "running"
    ended = fleet.finish(job, hand)
    assert (ended.state, ended.failed, ended.reasons) == ("done", 3, {"simulated_failure": 3})


def step_back(fleet: Fleet, seconds: float) -> None:
    """Set the clock back: the ledger's time is the server's time plus an offset, so the offset is reduced, and the
    server's time at the last tick is in the future, as it would be."""
    state = fleet.core.state
    state.hincrbyfloat(keys.clock(), "offset", -seconds)
    state.hset(keys.clock(), "wall", read_time(state) - float(str(state.hget(keys.clock(), "offset"))) + seconds)


def test_a_clock_set_back_stops_neither_retries_nor_deadlines_nor_recovery(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    state = fleet.core.state
    state.hset(keys.clock(), "offset", 10 * HOUR_S)  # room for the step
    hand, dead = fleet.hire(index=0), fleet.hire(index=1)
    dead.take()
    late = fleet.submit(*items(1), cache="off", deadline_s=0.2)
    fleet.core.pause(late)
    fleet.tick()
    now = read_time(state)
    step_back(fleet, HOUR_S)
    assert read_time(state) < now
    with caplog.at_level(logging.WARNING):
        fleet.tick()
    assert now <= read_time(state) < now + 60
    assert "was set back by 36" in caplog.text
    wait_until(lambda: (fleet.tick(), not fleet.job(late).is_active)[1], "the deadline passes")
    assert fleet.job(late).reason == "deadline"
    assert [worker.name for worker in fleet.core.registry.workers()] == [hand.worker.name, dead.worker.name]
    state.hset(keys.worker(dead.worker.name), "beat_at", read_time(state) - 601)  # its TTL would last for an hour
    assert [worker.name for worker in fleet.core.registry.workers()] == [hand.worker.name]
