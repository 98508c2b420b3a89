"""Watchdog: replaces a worker that receives messages but takes no chunk, and leaves a busy worker alone."""

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
    """Check a worker with these messages twice, as if an hour had passed. Return whether it was restarted."""

    def twice(reserved: list[str]) -> list[str]:
        anew: list[str] = []
        watch = Watchdog(
            fleet.recovery, fleet.core.ledger, fleet.settings.redis_url, hand.worker, lambda: reserved, anew.append
        )
        watch._restart_if_stalled()
        assert not anew, "it was given no time"
        *waiting, since = watch._waiting
        watch._waiting = (*waiting, since - 3600)  # type: ignore[assignment]  # a tuple of three
        watch._restart_if_stalled()
        return anew

    return twice


def test_a_child_that_was_announced_a_chunk_and_takes_none_is_replaced(fleet: Fleet, look: Look) -> None:
    fleet.submit({"x": 1})
    assert look([TASK]) == [""]


def test_a_worker_that_receives_no_messages_is_replaced(fleet: Fleet, look: Look) -> None:
    fleet.submit({"x": 1})
    assert look([]) == [""]


def test_a_child_that_loads_new_weights_is_not_replaced(fleet: Fleet, look: Look) -> None:
    fleet.submit({"x": 1})
    assert look([FOLLOW]) == []


def test_a_child_that_holds_a_chunk_is_not_replaced(fleet: Fleet, hand: Hand, look: Look) -> None:
    fleet.submit(*({"x": x} for x in range(3)), spec={"batch_items": 1})
    assert hand.take()
    assert look([TASK]) == []


def test_without_waiting_messages_no_worker_is_replaced(look: Look) -> None:
    assert look([TASK]) == []
