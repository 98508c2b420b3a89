"""Dispatch of chunks: windows, priorities, fairness, adoption and stealing; and recovery of dead workers' chunks."""

from typing import Any

import pytest
from redis import Redis

from config import keys
from tasks.jobs.model import Result
from tasks.jobs.state.cache import Answer, request_hash
from tasks.jobs.state.ledger import compress, expand
from tasks.jobs.state.outcome import settle
from tests.support.fleet import Fleet, Hand
from tests.support.programs import wait_until

CACHED = {"cacheable": True}


def items(number: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"x": x} | fields for x in range(number)]


def done(hand: Hand, chunk: Any, indices: Any = None) -> None:
    """Commit successful results for a chunk that the test took itself."""
    settled = [settle(i, {}, Result(score=1.0)) for i in (chunk.items if indices is None else indices)]
    hand.core.ledger.commit(chunk, hand.worker.name, 0.1, settled, over=indices is None)


def unsettled(fleet: Fleet, job: str) -> list[int]:
    """Return the lost items: without an outcome, and in no chunk, no pending list and no list of waiters."""
    state = fleet.core.state
    owned: set[int] = set()
    for chunk in state.smembers(keys.job_chunks(job)):
        owned |= set(expand(str(state.hget(keys.chunk(chunk), "items"))))
    for key in state.keys(keys.job_pending(job, "*")):
        owned |= {i for entry in state.lrange(key, 0, -1) for i in expand(entry.lstrip("=!"))}
    for key in state.keys("assay:waiters:*"):
        owned |= {int(w.split("|")[2]) for w in state.smembers(key) if w.startswith(job)}
    owned |= {int(w.split("|")[2]) for w in state.zrange(keys.parked(), 0, -1) if w.startswith(job)}
    settled = {int(index) for index in state.hkeys(keys.job_outcomes(job, "0"))}
    return sorted(set(range(fleet.job(job).total)) - owned - settled)


@pytest.mark.parametrize("text", ["", "3", "0-4", "0-4,7", "1,3,5-9"])
def test_ranges_survive_parsing_and_formatting(text: str) -> None:
    assert compress(expand(text)) == text


# --- windows and order ---


def test_a_queue_holds_a_few_seconds_of_work_whatever_the_size_of_the_job(fleet: Fleet, state: Redis) -> None:
    fleet.hire()
    fleet.submit(*items(2000), spec={"cost_s": 0.05, "batch_items": 10})
    held = sum(
        int(state.hget(keys.chunk(c), "count") or 0) for c in state.zrange("assay:queue:gpu.node1.0:dispatched", 0, -1)
    )
    assert 10 <= held * 0.05 / 0.05 <= 100
    assert held < 200


def test_filling_a_queue_is_idempotent(fleet: Fleet, state: Redis) -> None:
    fleet.hire()
    fleet.submit(*items(500), spec={"cost_s": 0.05})
    before = state.zrange(keys.dispatched("gpu.node1.0"), 0, -1)
    fleet.core.dispatcher.fill("device")
    assert state.zrange(keys.dispatched("gpu.node1.0"), 0, -1) == before


def test_a_job_uses_at_most_its_number_of_device_slots(fleet: Fleet, state: Redis) -> None:
    hands = [fleet.hire(index=index) for index in range(3)]
    job = fleet.submit(*items(300), spec={"cost_s": 0.02, "batch_items": 5}, slots=2)
    assert state.zcard(keys.dispatched("gpu.node1.0")) > 0
    assert state.zcard(keys.dispatched("gpu.node1.1")) > 0
    assert state.zcard(keys.dispatched("gpu.node1.2")) == 0
    hands[0].take()  # now the third worker could steal the chunks that wait in the first queue
    assert hands[2].take() == []
    unlimited = fleet.submit(*items(300), spec={"cost_s": 0.02, "batch_items": 5})
    assert {chunk.job_id for chunk in hands[2].take()} == {unlimited}
    assert fleet.job(job).state == "running"


def test_many_jobs_limited_to_one_device_leave_no_other_device_idle(fleet: Fleet, state: Redis) -> None:
    fleet.hire(index=0)
    for _ in range(40):
        fleet.submit(*items(50), spec={"cost_s": 0.02, "batch_items": 5}, slots=1)
    unlimited = fleet.submit(*items(300), spec={"cost_s": 0.02, "batch_items": 5})
    # It has used the most time, so pages of jobs that are limited to the first device sort before it.
    state.zadd(keys.ready("device", "normal"), {f"{unlimited}|run": 1000.0}, xx=True)
    second = fleet.hire(index=1)
    fleet.core.dispatcher.forget_fleet()
    fleet.core.dispatcher.fill("device")
    assert {chunk.job_id for chunk in second.take()} == {unlimited}


def test_paused_slots_do_not_count_towards_a_jobs_slot_limit(fleet: Fleet, state: Redis) -> None:
    for index in range(2):
        fleet.hire(index=index)
    fleet.core.pause_queue("gpu.node1.0")
    fleet.submit(*items(300), spec={"cost_s": 0.02, "batch_items": 5}, slots=1)
    assert state.zcard(keys.dispatched("gpu.node1.1")) > 0


def test_an_interactive_job_is_not_stuck_behind_a_large_one(fleet: Fleet) -> None:
    hand = fleet.hire()
    large = fleet.submit(*items(5000), spec={"cost_s": 0.01, "batch_items": 10}, priority="bulk")
    small = fleet.submit(*items(1), priority="interactive", spec={"batch_items": 1})
    (chunk, *_) = hand.take()
    assert chunk.job_id == small
    done(hand, chunk)
    assert fleet.job(small).state == "done"
    assert fleet.job(large).ok == 0


def test_a_message_of_a_bulk_chunk_does_not_overtake_an_interactive_chunk(fleet: Fleet, state: Redis) -> None:
    """With a broker queue per priority, a worker receives the messages of its queues in any order."""
    hand = fleet.hire()
    bulk = fleet.submit(*items(4), spec={"cost_s": 1, "batch_items": 1}, priority="bulk")
    interactive = fleet.submit(*items(1), priority="interactive")
    (first, *_) = [str(chunk) for chunk in state.zrange(keys.dispatched(hand.queue), -1, -1)]
    assert state.hget(keys.chunk(first), "job_id") == bulk
    taken = [
        hand.core.ledger.take(hand.queue, first, hand.runner.incarnation, hand.worker.name, lease_id)[0]
        for lease_id in ("first", "second")
    ]
    assert [chunk.job_id for chunk in taken] == [interactive, bulk]
    assert taken[1].id == first, "the message is followed where nothing of a higher priority waits"


def test_jobs_of_equal_priority_get_equal_time_not_equal_chunks(fleet: Fleet, state: Redis) -> None:
    hand = fleet.hire()
    slow = fleet.submit(*items(100), spec={"cost_s": 0.6, "batch_items": 1})
    quick = fleet.submit(*items(100), spec={"cost_s": 0.2, "batch_items": 1})
    for number in range(40):
        chunks = hand.take(f"lease-{number}")
        for chunk in chunks:
            done(hand, chunk)
    used = {job: float(state.hget(keys.job(job), "used:run") or 0) for job in (slow, quick)}
    assert 0.5 < used[slow] / used[quick] < 2


def test_a_worker_prefers_chunks_for_its_loaded_model(fleet: Fleet) -> None:
    from tasks.simulated.model import SimulatedSpec

    spec = {"cost_s": 0.5, "seed": 7, "batch_items": 1}
    loaded = fleet.core.kinds["simulated"].batch_key(SimulatedSpec(**spec))
    first = fleet.submit(*items(4), spec={"cost_s": 0.5, "seed": 6, "batch_items": 1})
    second = fleet.submit(*items(4), spec=spec)
    hand = fleet.hire(models=("another", loaded))
    (chunk, *_) = hand.take()
    assert chunk.job_id == second != first


def test_small_jobs_of_many_clients_share_a_batch(fleet: Fleet) -> None:
    hand = fleet.hire()
    spec = {"batch_cost_s": 0.05, "batch_items": 64}
    jobs = [fleet.submit({"x": x}, spec=spec) for x in range(64)]
    assert len(hand.take()) == 64
    other = fleet.submit({"x": 1}, spec=spec | {"seed": 5})
    third = fleet.submit({"x": 1}, spec=spec)
    taken = hand.take("another lease")
    assert len(taken) == 1, "a job with a different spec runs in a batch of its own"
    assert {other, third} >= {chunk.job_id for chunk in taken}
    assert len(set(jobs)) == 64


def test_an_idle_device_steals_chunks_from_the_queue_of_a_busy_device(fleet: Fleet) -> None:
    busy = fleet.hire(index=0)
    job = fleet.submit(*items(6), spec={"cost_s": 0.75, "batch_items": 1})
    busy.take()
    idle = fleet.hire(index=1)
    stolen = []
    while chunks := idle.take(f"lease-{len(stolen)}"):
        stolen += chunks
        for chunk in chunks:
            done(idle, chunk)
    assert stolen
    assert fleet.job(job).ok == sum(len(chunk.items) for chunk in stolen)
    assert unsettled(fleet, job) == []


# --- lost replies ---


def test_a_call_with_a_lost_reply_can_be_repeated(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(10), spec={"cost_s": 0.5})
    first = hand.take("same lease")
    assert sorted(hand.take("same lease"), key=str) == sorted(first, key=str)
    assert hand.begin(first) == hand.begin(first) == "r" * sum(len(chunk.items) for chunk in first)
    for chunk in first:
        done(hand, chunk)
        done(hand, chunk)
    assert fleet.job(job).ok == sum(len(chunk.items) for chunk in first)


def test_a_result_counts_once_and_the_first_commit_wins(fleet: Fleet) -> None:
    first, second = fleet.hire(index=0), fleet.hire(index=1)
    job = fleet.submit({"x": 1}, {"x": 2})
    (chunk, *_) = first.take()
    first.leave()
    fleet.core.ledger.reclaim(first.runner.incarnation, proven=False)  # declared dead, although it is alive
    second.work()
    late = [settle(i, {}, Result(score=-5.0)) for i in chunk.items]
    assert first.core.ledger.commit(chunk, "late", 0.1, late, over=True) == (0, "done")
    assert all(row["score"] >= 0 for row in fleet.rows(job))
    assert fleet.job(job).ok == 2


# --- claims ---


def requests_of(number: int) -> dict[int, str]:

    keys_ = [{"x": x, "seed": 0, "result_bytes": 0} for x in range(number)]
    return {x: request_hash("simulated", "run", key) for x, key in enumerate(keys_)}


def start_owner(fleet: Fleet, number: int) -> tuple[Hand, list[Any], str]:
    """Submit a job, and let a worker claim each of its items and begin to compute them."""
    owner = fleet.hire(index=0)
    job = fleet.submit(*items(number), spec=CACHED | {"batch_items": number})
    chunks = owner.take()
    assert owner.begin(chunks, requests_of(number)) == "r" * number
    return owner, chunks, job


def test_items_claimed_by_another_job_wait_without_blocking_the_worker(fleet: Fleet) -> None:
    owner, chunks, first = start_owner(fleet, 5)
    other = fleet.hire(index=1)
    second = fleet.submit(*items(6), spec=CACHED | {"batch_items": 10})
    other.work()
    assert fleet.computed() == ["5"], "the worker computed the unclaimed item and did not wait for the claimed items"
    assert fleet.job(second).ok == 1
    assert unsettled(fleet, second) == []
    requests = requests_of(5)
    owner.core.cache.put("simulated", {each: Answer(Result(score=0.5), "run", {}) for each in requests.values()})
    for chunk in chunks:
        settled = [settle(i, {}, Result(score=0.5)) for i in chunk.items]
        owner.core.ledger.commit(chunk, "w", 0.1, settled, [requests[i] for i in chunk.items], over=True)
    fleet.work(owner, other)
    assert (fleet.job(first).state, fleet.job(second).state) == ("done", "done")
    assert [row["cached"] for row in fleet.rows(second)] == [True] * 5 + [False]
    assert fleet.computed() == ["5"]


@pytest.mark.parametrize("how", ["dies", "is cancelled", "fails"])
def test_a_waiter_computes_its_items_if_the_claims_owner_does_not_deliver(fleet: Fleet, how: str) -> None:
    owner, chunks, first = start_owner(fleet, 3)
    other = fleet.hire(index=1)
    second = fleet.submit(*items(3), spec=CACHED | {"batch_items": 10})
    other.work()
    assert fleet.computed() == []
    if how == "dies":
        fleet.core.ledger.reclaim(owner.runner.incarnation, proven=True)
    elif how == "is cancelled":
        fleet.core.cancel(first)
        for chunk in chunks:
            owner.core.ledger.commit(chunk, "w", 0, (), over=True)
    else:
        from tasks.jobs.model import ItemError

        for chunk in chunks:
            bad = [settle(i, {}, Result(error=ItemError("broken", "no"))) for i in chunk.items]
            owner.core.ledger.commit(chunk, "w", 0.1, bad, over=True)
    fleet.work(owner, other)
    assert fleet.job(second).state == "done"
    assert fleet.job(second).ok == 3
    assert fleet.core.state.keys("assay:claim:*") == []
    assert fleet.core.state.keys("assay:waiters:*") == []


def test_two_jobs_that_wait_for_each_others_claims_both_end(fleet: Fleet) -> None:
    spec = CACHED | {"cost_s": 0.1, "batch_items": 2}
    first = fleet.hire(index=0)
    one = fleet.submit({"x": 0}, {"x": 1}, spec=spec)
    (a,) = first.take()
    first.leave()  # so that the second job's items are dispatched to the second worker only
    second = fleet.hire(index=1)
    two = fleet.submit({"x": 1}, {"x": 0}, spec=spec)
    (b,) = second.take()
    assert a.items == b.items == (0, 1)
    requests = requests_of(2)
    first.core.ledger.begin(first.runner.incarnation, a.lease_id, 60, [(a.id, [(0, requests[0])])])
    second.core.ledger.begin(second.runner.incarnation, b.lease_id, 60, [(b.id, [(0, requests[1])])])
    assert first.core.ledger.begin(first.runner.incarnation, a.lease_id, 60, [(a.id, [(1, requests[1])])]) == "w"
    assert second.core.ledger.begin(second.runner.incarnation, b.lease_id, 60, [(b.id, [(1, requests[0])])]) == "w"
    for hand, chunk, request in ((first, a, requests[0]), (second, b, requests[1])):
        result = Result(score=0.5)
        hand.core.cache.put("simulated", {request: Answer(result, "run", {})})
        hand.core.ledger.commit(chunk, "w", 0.1, [settle(0, {}, result)], [request], over=True)
    fleet.work(second)
    assert (fleet.job(one).state, fleet.job(two).state) == ("done", "done")


# --- dead workers ---


def test_chunks_of_a_worker_without_heartbeat_run_on_another_worker(fleet: Fleet) -> None:
    dead = fleet.hire(index=0)
    job = fleet.submit(*items(20), spec={"cost_s": 0.001})
    dead.begin(dead.take())
    alive = fleet.hire(index=1)
    dead.leave()
    fleet.core.state.hset(keys.tick(), mapping={"last": "9999999999", "grace_until": "0"})
    fleet.tick()
    alive.work()
    assert fleet.job(job).state == "done"
    assert fleet.job(job).failed == 0
    assert fleet.core.state.hlen(keys.job_deaths(job)) == 0, (
        "a missing heartbeat does not prove a crash, so no item is a suspect"
    )


def test_after_a_stall_of_redis_no_worker_is_declared_dead_at_once(fleet: Fleet) -> None:
    silent = fleet.hire(index=0)
    fleet.submit(*items(5), spec={"cost_s": 0.001})
    chunks = silent.take()
    silent.leave()  # its heartbeat expired while Redis stalled
    fleet.core.state.hset(keys.tick(), mapping={"last": "1"})  # the last maintenance tick was long ago
    fleet.tick()
    assert fleet.core.state.smembers(keys.held(silent.runner.incarnation)) == {chunk.id for chunk in chunks}
    silent.core.registry.announce(silent.worker)
    fleet.tick()
    for chunk in chunks:
        done(silent, chunk)
    assert fleet.core.state.smembers(keys.holders()) == set()


def test_only_uncommitted_items_of_the_running_batch_are_suspects(fleet: Fleet, state: Redis) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(8), spec={"cost_s": 0.01, "batch_items": 4})
    chunks = hand.take()
    everything = [index for chunk in chunks for index in chunk.items]
    hand.begin(chunks[:1])
    done(hand, chunks[0], chunks[0].items[:2])
    fleet.core.ledger.reclaim(hand.runner.incarnation, proven=True)
    entries = state.lrange(keys.job_pending(job, "run"), 0, -1)
    suspects = sorted(i for entry in entries if entry.startswith("!") for i in expand(entry[1:]))
    assert suspects == sorted(set(chunks[0].items) - set(chunks[0].items[:2]))
    assert sorted([i for entry in entries for i in expand(entry.lstrip("!"))]) == sorted(
        set(range(8)) - set(everything[:2])
    )


def test_an_item_that_kills_its_worker_is_found_and_the_rest_succeed(fleet: Fleet) -> None:
    hand = fleet.hire()
    poison = 37
    job = fleet.submit(*items(100), spec={"batch_items": 100, "cost_s": 0.001})
    deaths = 0
    for number in range(200):
        chunks = hand.take(f"lease-{number}")
        if not chunks:
            break
        hand.begin(chunks)
        if any(poison in chunk.items for chunk in chunks):
            deaths += 1
            fleet.core.ledger.reclaim(hand.runner.incarnation, proven=True)
        else:
            for chunk in chunks:
                done(hand, chunk)
    after = fleet.job(job)
    assert (after.state, after.ok, after.failed) == ("done", 99, 1)
    row = fleet.rows(job)[poison]
    assert (row["status"], row["error"]["type"]) == ("failed", "worker_lost")
    assert deaths <= 12


def test_an_item_past_its_deadline_alone_is_timed_out(fleet: Fleet, state: Redis) -> None:
    hand = fleet.hire()
    job = fleet.submit(*items(2), spec={"batch_items": 2})
    for number in range(10):
        chunks = hand.take(f"lease-{number}")
        if not chunks:
            break
        hand.begin(chunks, deadline_s=0)
        if any(1 in chunk.items for chunk in chunks):
            state.hset(keys.batch(hand.runner.incarnation), "late", "1")
            fleet.core.ledger.reclaim(hand.runner.incarnation, proven=True)
        else:
            for chunk in chunks:
                done(hand, chunk)
    assert [row["status"] for row in fleet.rows(job)] == ["ok", "timed_out"]


def test_a_message_that_was_lost_is_sent_again(fleet: Fleet, state: Redis) -> None:
    hand = fleet.hire()
    fleet.submit(*items(3))
    assert fleet.celery.queued(hand.queue) == 1
    state.delete(
        hand.queue, f"{hand.queue}\x06\x161"
    )  # delete the list of each priority in use, as an administrator might
    assert fleet.celery.queued(hand.queue) == 0

    def look() -> bool:
        fleet.tick()
        return fleet.celery.queued(hand.queue) > 0

    wait_until(look, "the chunk is announced again")


def test_chunks_of_a_queue_without_a_reader_move_to_another_queue(fleet: Fleet, state: Redis) -> None:
    gone = fleet.hire(index=0)
    job = fleet.submit(*items(4), spec={"cost_s": 0.001})
    gone.leave()
    state.hset(keys.tick(), mapping={"last": "9999999999", "grace_until": "0"})
    fleet.tick()
    other = fleet.hire(index=1)
    other.work()
    assert fleet.job(job).state == "done"
