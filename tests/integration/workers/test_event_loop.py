"""Event loop for coroutines that threads submit; every coroutine ends with a result, an error or a cancellation."""

import asyncio
import threading
import time

from tests.support.programs import PATIENCE_S
from workers.worker.event_loop import EventLoop


async def value(number: int) -> int:
    return number


def test_a_coroutine_returns_its_result_or_raises_its_exception() -> None:
    async def broken() -> int:
        raise ValueError("no")

    pages = list(EventLoop().run_each([value(1), broken(), value(3)], lambda: False))
    outcomes = {index: outcome for page in pages for index, outcome, _ in page}
    assert (outcomes[0], str(outcomes[1]), outcomes[2]) == (1, "no", 3)


def test_a_stopped_loop_cancels_its_coroutines_and_can_be_restarted() -> None:
    loop, ended = EventLoop(), threading.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    first = loop.get()
    asyncio.run_coroutine_threadsafe(endless(), first)
    assert loop.run(value(1), PATIENCE_S) == 1
    loop.stop()
    assert ended.is_set()
    assert first.is_closed()
    assert loop.run(value(2), PATIENCE_S) == 2
    loop.stop()


def test_a_coroutine_cancelled_before_it_begins_still_ends() -> None:
    loop = EventLoop()
    loop.get().call_soon_threadsafe(
        time.sleep, 0.6
    )  # a busy loop handles the start and the cancellation in the same iteration
    pages = list(loop.run_each([asyncio.sleep(60, n) for n in range(3)], lambda: True))
    outcomes = [outcome for page in pages for _, outcome, _ in page]
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 3
