"""A worker that leaves its chunks untaken: deaf, stuck, or only busy."""

from collections.abc import Callable

import pytest

from tasks.jobs.dispatch.dispatcher import TASK
from tasks.rollouts.task import TASK as FOLLOW
from tests.support.fleet import Fleet, Hand
from workers.worker.watchdog import Watchdog

Look = Callable[[list[str]], list[str]]


@pytest.fixture
def hand(fleet: Fleet) -> Hand:
    return fleet.hire()


@pytest.fixture
def look(fleet: Fleet, hand: Hand) -> Look:
    """Look twice at a worker with these messages, as if an hour had passed; whether it was started anew."""

    def twice(reserved: list[str]) -> list[str]:
        anew: list[str] = []
        watch = Watchdog(
            fleet.recovery, fleet.core.ledger, fleet.settings.redis_url, hand.worker, lambda: reserved, anew.append
        )
        watch._end_if_deaf()
        assert not anew, "it was given no time"
        *waiting, since = watch._waiting
        watch._waiting = (*waiting, since - 3600)  # type: ignore[assignment]  # a tuple of three
        watch._end_if_deaf()
        return anew

    return twice


def test_a_child_that_was_told_of_a_chunk_and_takes_nothing_is_replaced(fleet: Fleet, look: Look) -> None:
    fleet.submit({"x": 1})
    assert look([TASK]) == [""]


def test_a_worker_that_hears_nothing_is_replaced(fleet: Fleet, look: Look) -> None:
    fleet.submit({"x": 1})
    assert look([]) == [""]


def test_a_child_that_takes_new_weights_is_let_alone(fleet: Fleet, look: Look) -> None:
    fleet.submit({"x": 1})
    assert look([FOLLOW]) == []


def test_a_child_that_holds_a_chunk_is_let_alone(fleet: Fleet, hand: Hand, look: Look) -> None:
    fleet.submit(*({"x": x} for x in range(3)), spec={"batch_items": 1})
    assert hand.take()
    assert look([TASK]) == []


def test_where_nothing_waits_nobody_is_late(look: Look) -> None:
    assert look([TASK]) == []
