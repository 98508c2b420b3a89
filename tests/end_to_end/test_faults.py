"""Whichever process dies, each item gets a single outcome, in order and counted once, and no innocent item fails."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from config import keys
from tasks.jobs.model import JobHead
from tests.end_to_end.system import System
from tests.support.programs import PATIENCE_S, Program, wait_until


def items(number: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"x": x} | fields for x in range(number)]


def test_a_killed_child_loses_nothing(system: System) -> None:
    job = system.submit(*items(200), spec={"cost_s": 0.01, "batch_items": 20})
    system.wait_for_progress(job, 20)
    os.kill(system.children()[0].pid, signal.SIGKILL)
    ended = system.finish(job)
    assert (ended.state, ended.ok, ended.failed) == ("done", 200, 0)


def test_the_chunks_of_a_killed_worker_are_recovered_and_run(system: System) -> None:
    job = system.submit(*items(20), spec={"cost_s": 1, "batch_items": 1})
    wait_until(lambda: len(system.core.state.smembers(keys.holders())) == 2, "both workers run an item")
    holders = {str(holder): holder.split("/")[0] for holder in system.core.state.smembers(keys.holders())}
    dead, name = next(iter(holders.items()))
    worker = system.core.registry.get(name)
    assert worker
    victim = psutil.Process(worker.pid)
    for process in [victim, *victim.children(recursive=True)]:
        process.kill()
    wait_until(
        lambda: not system.core.state.sismember(keys.holders(), dead),
        "the chunks of the dead worker are back in the ledger",
    )
    assert system.finish(job).ok == 20


@pytest.mark.parametrize(
    ("kills", "number"), [(8, 4000), pytest.param(40, 20_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_random_kills_lose_nothing_and_blame_nobody(system: System, kills: int, number: int) -> None:
    chance = random.Random(number)
    job = system.submit(*items(number), spec={"cost_s": 0.002, "batch_items": 25})
    for kill in range(kills):
        system.wait_for_progress(job, min(number - 1, number * kill // (kills + 1) + 1))
        system.kill_a_worker(chance)
    ended = system.finish(job)
    assert (ended.state, ended.ok, ended.failed) == ("done", number, 0)


@pytest.mark.parametrize(
    ("kills", "number"), [(4, 22_000), pytest.param(30, 200_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_random_kills_of_workers_and_movers_lose_nothing_of_a_stored_job(
    system: System, kills: int, number: int
) -> None:
    chance = random.Random(number)
    lines = (b'{"id": "item-%d", "x": %d}' % (x, x) for x in range(number))
    job = system.core.submitter.submit_lines(JobHead(kind="simulated", spec={"batch_items": 100}), lines)
    assert system.job(job).layout.is_stored
    for kill in range(kills):
        system.wait_for_progress(job, min(number - 1, number * kill // (kills + 1) + 1))
        system.kill_a_worker(chance)
        for mover in system.children("cpu"):
            mover.kill()
    ended = system.finish(job)
    assert (ended.state, ended.ok, ended.failed) == ("done", number, 0)
    assert all(row["id"] == f"item-{index}" for index, row in enumerate(system.rows(job)))
    assert system.core.state.keys(keys.job_outcomes(job, "*")) == []


def test_everything_killed_at_once_goes_on_after_a_restart(system: System) -> None:
    job = system.submit(*items(300), spec={"cost_s": 0.005, "batch_items": 10})
    system.wait_for_progress(job, 30)
    for launcher in system.launchers:
        doomed = [psutil.Process(launcher.process.pid), *launcher.descendants()]
        for process in doomed:
            if process.is_running():
                process.kill()
        launcher.wait()
    system.launchers.clear()
    system.launch("device")
    ended = system.finish(job)
    assert (ended.state, ended.ok, ended.failed) == ("done", 300, 0)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_redis_restarted_in_the_middle_of_a_job(system: System, how: signal.Signals) -> None:
    job = system.submit(*items(400), spec={"cost_s": 0.01, "batch_items": 10})
    system.wait_for_progress(job, 50)
    system.state.stop(how)
    time.sleep(0.3)
    system.state.start()
    ended = system.finish(job)
    assert (ended.state, ended.ok, ended.failed) == ("done", 400, 0)


@pytest.mark.parametrize("seconds", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_redis_frozen_in_the_middle_of_a_job(system: System, seconds: float) -> None:
    job = system.submit(*items(300), spec={"cost_s": 0.01, "batch_items": 10})
    system.wait_for_progress(job, 30)
    assert system.state.process
    system.state.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    system.state.process.send_signal(signal.SIGCONT)
    ended = system.finish(job)
    assert (ended.state, ended.ok, ended.failed) == ("done", 300, 0)


def test_a_process_killed_between_store_and_publish_leaves_a_job_that_is_run(
    system: System, run: Callable[..., Program]
) -> None:
    code = """
import os, signal
from config.settings import load_settings
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.jobs.dispatch.dispatcher import Dispatcher
from tasks.jobs.model import JobRequest

Dispatcher.fill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # others may fill
settings = load_settings()
core = create_core(settings, create_celery(settings))
core.submitter.submit(JobRequest(kind="simulated", items=[{"x": x} for x in range(5)]))
"""
    submitter = run("python", "-c", code, ASSAY_REDIS_URL=system.state.url, ASSAY_CACHE_URL=system.cache.url)
    assert submitter.wait() == -signal.SIGKILL
    (job,) = system.core.state.zrange(keys.jobs(), 0, -1)
    assert system.finish(str(job)).ok == 5


def test_a_message_deleted_by_hand_is_sent_again(system: System) -> None:
    for parent in system.parents():
        parent.suspend()
    job = system.submit(*items(5))
    for queue in ("gpu.node1.0", "gpu.node1.1"):
        system.core.state.delete(queue, f"{queue}\x06\x161", f"{queue}\x06\x162")
    for parent in system.parents():
        parent.resume()
    assert system.finish(job).ok == 5


def test_workers_that_lost_their_consumer_are_restarted(system: System) -> None:
    for slot in (0, 1):
        worker = [f"gpu.node1.{slot}@node1"]
        assert system.celery.control.cancel_consumer(
            f"gpu.node1.{slot}", destination=worker, reply=True, timeout=PATIENCE_S
        )
    before = {worker.incarnation for worker in system.core.registry.workers() if worker.pool == "device"}
    job = system.submit(*items(5))
    assert system.finish(job).ok == 5
    after = {worker.incarnation for worker in system.core.registry.workers() if worker.pool == "device"}
    assert after != before


@pytest.mark.slow
def test_a_child_that_hangs_before_it_has_taken_anything_is_replaced(system: System) -> None:
    for child in system.children():
        child.suspend()
    assert system.finish(system.submit(*items(5))).ok == 5


def test_one_item_that_kills_its_worker_every_time_fails_and_the_others_do_not(system: System) -> None:
    job = system.submit(*[{"x": x, "crash": x == 42} for x in range(100)], spec={"batch_items": 100})
    ended = system.finish(job)
    assert (ended.state, ended.ok, ended.failed) == ("done", 99, 1)
    row = system.rows(job)[42]
    assert (row["status"], row["error"]["type"]) == ("failed", "worker_lost")


@pytest.mark.parametrize("how", ["sleep", "interpreter"])
def test_a_child_that_hangs_is_killed_and_only_its_item_is_lost(system: System, how: str) -> None:
    job = system.submit(
        *[{"x": x, "hang": how if x == 3 else ""} for x in range(8)], spec={"batch_items": 8, "timeout_s": 3.0}
    )
    ended = system.finish(job)
    assert (ended.ok, ended.failed) == (7, 1)
    assert [row["status"] for row in system.rows(job)] == ["ok"] * 3 + ["timed_out"] + ["ok"] * 4


def test_two_jobs_with_the_same_items_at_once_compute_them_once(system: System) -> None:
    spec = {"cacheable": True, "cost_s": 0.02, "batch_items": 5}
    jobs: list[str] = []
    threads = [threading.Thread(target=lambda: jobs.append(system.submit(*items(100), spec=spec))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [system.finish(job).ok for job in jobs] == [100, 100]
    assert len(system.computed()) == 100


def test_cancelling_a_job_does_not_affect_another_job_with_the_same_items(system: System) -> None:
    spec = {"cacheable": True, "cost_s": 0.02, "batch_items": 5}
    first, second = (system.submit(*items(100), spec=spec) for _ in range(2))
    system.wait_for_progress(first, 20)
    system.core.cancel(first)
    assert system.finish(second).ok == 100
    assert system.finish(first).state == "cancelled"
    assert len(system.computed()) <= 110, "at most the items in flight when it was cancelled are computed twice"


def test_cancel_stops_workers_in_the_middle_of_an_item(system: System) -> None:
    job = system.submit(*items(100), spec={"cost_s": 3600, "batch_items": 1})
    wait_until(lambda: system.core.state.smembers(keys.holders()), "a worker runs an item")
    system.core.cancel(job)
    # Each item takes an hour, so a worker is free in time only if it stops in the middle of an item.
    wait_until(lambda: not system.core.state.smembers(keys.holders()), "no worker runs an item of the job")
    assert {row["status"] for row in system.rows(job)} == {"cancelled"}
    after = system.submit(*items(3))
    assert system.finish(after).ok == 3


def test_a_device_drained_and_another_added_in_the_middle(system: System) -> None:
    job = system.submit(*items(300), spec={"cost_s": 0.01, "batch_items": 10})
    system.wait_for_progress(job, 30)
    system.core.pause_queue("gpu.node1.0", draining=True)
    system.core.pause_queue("gpu.node1.1")  # so that only the new device can run the rest
    system.core.pause(job)
    system.launch("device", "--slot", "0", ASSAY_NODE="node2")
    system.wait_for_workers(4)
    system.core.resume(job)
    ended = system.finish(job)
    assert ended.ok == 300
    assert "gpu.node2.0" in ended.workers


def test_a_pool_without_a_worker_gets_one_when_work_waits_for_it(system: System) -> None:
    system.launch("api", ASSAY_API_WORKERS_MIN="0")
    job = system.submit(*items(5), spec={"stages": [{"name": "call", "pool": "api"}]})
    assert system.finish(job).ok == 5


@pytest.mark.parametrize("how", ["flushed", "gone"])
def test_the_cache_lost_in_the_middle_costs_time_but_no_result(system: System, how: str) -> None:
    job = system.submit(*items(150), spec={"cacheable": True, "cost_s": 0.01, "batch_items": 5})
    system.wait_for_progress(job, 30)
    if how == "flushed":
        with system.cache.client() as cache:
            cache.flushall()
    else:
        system.cache.stop(signal.SIGKILL)
    ended = system.finish(job)
    assert (ended.state, ended.ok) == ("done", 150)
