"""Autoscaling of API and CPU workers: starts a worker while messages wait, and stops idle workers only."""

from dataclasses import replace

from tasks.worker_registry import Worker
from workers.processes.scaling import Bounds, Scaler, Start, Stop

READY = Worker("api.n.0", "api", "n", "host", 1, "i", "l", ("api",), 16, state="ready")
BUSY = replace(READY, active=16)


def scaler(least: int = 1, most: int = 3) -> Scaler:
    return Scaler(Bounds(least, most, idle_s=60))


def test_waiting_work_starts_another_worker() -> None:
    assert scaler().decide(5, {0: BUSY}, now=0) == Start(1)


def test_a_worker_that_is_still_starting_is_awaited() -> None:
    assert scaler().decide(5, {0: BUSY, 1: None}, now=0) is None
    assert scaler().decide(5, {0: BUSY, 1: replace(READY, state="starting")}, now=0) is None


def test_the_maximum_is_never_exceeded() -> None:
    assert scaler().decide(99, {0: BUSY, 1: BUSY, 2: BUSY}, now=0) is None


def test_the_minimum_is_kept() -> None:
    assert scaler(least=2).decide(0, {1: READY}, now=0) == Start(0)
    lazy = scaler(least=1)
    lazy.decide(0, {0: READY}, now=0)
    assert lazy.decide(0, {0: READY}, now=1000) is None


def test_an_idle_worker_stops_after_its_idle_time() -> None:
    some = scaler()
    assert some.decide(0, {0: READY, 1: READY}, now=0) is None
    assert some.decide(0, {0: READY, 1: READY}, now=59) is None
    assert some.decide(0, {0: READY, 1: READY}, now=60) == Stop(1)


def test_a_busy_worker_is_never_stopped() -> None:
    some = scaler()
    some.decide(0, {0: READY, 1: BUSY}, now=0)
    assert some.decide(0, {0: READY, 1: BUSY}, now=1000) == Stop(0)
    busy = scaler()
    busy.decide(0, {0: BUSY, 1: BUSY}, now=0)
    assert busy.decide(0, {0: BUSY, 1: BUSY}, now=1000) is None


def test_work_restarts_the_idle_time() -> None:
    some = scaler()
    some.decide(0, {0: READY, 1: READY}, now=0)
    some.decide(0, {0: BUSY, 1: BUSY}, now=50)
    assert some.decide(0, {0: READY, 1: READY}, now=60) is None


def test_waiting_work_restarts_the_idle_time_even_if_no_worker_was_seen_busy() -> None:
    some = scaler()
    some.decide(0, {0: READY}, now=0)
    assert some.decide(3, {0: READY}, now=59) == Start(1)
    assert some.decide(0, {0: READY, 1: READY}, now=61) is None
    assert some.decide(0, {0: READY, 1: READY}, now=121) == Stop(1)


def test_from_zero_workers_the_first_message_starts_a_worker() -> None:
    assert scaler(least=0).decide(1, {}, now=0) == Start(0)
    assert scaler(least=0).decide(0, {}, now=0) is None
