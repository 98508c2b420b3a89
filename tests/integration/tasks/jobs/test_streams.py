"""Continuous batching: chunks join an engine while other chunks run, and no item is lost or mixed up with another."""

from threading import Thread

from config import keys
from tasks.jobs.execution.runner import ADOPT_S
from tests.support.fleet import Fleet
from tests.support.programs import wait_until

SPEC = {"streams": True, "batch_items": 4, "cost_s": 0.02}


def test_a_streaming_engine_counts_every_item_once(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*[{"x": x} for x in range(100)], spec=SPEC)
    assert fleet.finish(job, hand).ok == 100
    assert sorted(map(int, fleet.computed())) == list(range(100))
    assert not fleet.core.state.smembers(keys.holders()), "every chunk has ended"


def test_a_later_job_joins_the_running_engine(fleet: Fleet) -> None:
    hand = fleet.hire()
    first = fleet.submit({"x": "slow", "cost_s": 600}, *[{"x": x} for x in range(7)], spec=SPEC | {"batch_items": 500})
    working = Thread(target=hand.work)
    working.start()
    wait_until(lambda: fleet.job(first).ok == 7, "every item but the slow item is done")
    second = fleet.submit(*[{"x": f"later {x}"} for x in range(20)], spec=SPEC | {"batch_items": 500})
    wait_until(lambda: not fleet.job(second).is_active, "the later job is done beside the slow item")
    assert fleet.job(second).ok == 20
    assert fleet.job(first).is_active
    fleet.core.cancel(first)
    working.join()
    assert fleet.job(first).state == "cancelled"


def test_a_chunk_that_cannot_join_runs_after_the_engine_is_free(fleet: Fleet) -> None:
    hand = fleet.hire()
    jobs = [fleet.submit(*[{"x": x} for x in range(30)], spec=SPEC | {"seed": seed}) for seed in range(3)]
    plain = fleet.submit(*[{"x": x} for x in range(30)], spec={"batch_items": 4})
    for job in [*jobs, plain]:
        assert fleet.finish(job, hand).ok == 30


def test_a_taken_chunk_that_could_not_join_is_run_later(fleet: Fleet) -> None:
    hand = fleet.hire()
    first = fleet.submit({"x": "slow", "cost_s": ADOPT_S + 0.5}, spec=SPEC)
    working = Thread(target=hand.work)
    working.start()
    wait_until(lambda: fleet.job(first).state == "running", "the slow item runs")
    second = fleet.submit({"x": "other"}, spec=SPEC | {"seed": 1})
    wait_until(lambda: fleet.job(second).state != "queued", "the second job is taken")
    working.join()
    assert (fleet.job(first).ok, fleet.job(second).ok) == (1, 1)
    assert not fleet.core.state.smembers(keys.holders())


def test_equal_items_of_a_stream_are_computed_once(fleet: Fleet) -> None:
    hand = fleet.hire()
    spec = SPEC | {"cacheable": True}
    jobs = [fleet.submit(*[{"x": x % 5} for x in range(40)], spec=spec) for _ in range(3)]
    for job in jobs:
        assert fleet.finish(job, hand).ok == 40
    assert sorted(map(int, fleet.computed())) == list(range(5))


def test_failures_of_streamed_items_do_not_affect_other_items(fleet: Fleet) -> None:
    hand = fleet.hire()
    items = [{"x": x, "fail": x == 3, "fail_times": 2 if x == 5 else 0} for x in range(10)]
    job = fleet.submit(*items, spec=SPEC)

    def is_over() -> bool:
        fleet.tick()
        return not fleet.finish_step(job, hand)

    wait_until(is_over, "the job ends")
    assert (fleet.job(job).ok, fleet.job(job).reasons) == (9, {"simulated_failure": 1})
    assert fleet.rows(job)[5]["attempts"] == 3


def test_a_stopping_worker_takes_no_chunk(fleet: Fleet) -> None:
    hand = fleet.hire()
    job = fleet.submit(*[{"x": x} for x in range(10)], spec=SPEC)
    fleet.core.state.hset(keys.worker(hand.worker.name), "state", '"stopping"')
    hand.runner.run("")
    assert fleet.job(job).ok == 0
