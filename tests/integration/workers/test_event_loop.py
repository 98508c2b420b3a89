"""Coroutines run from threads: every one has an end, whatever happens to it."""

import asyncio
import threading
import time

from tests.support.programs import PATIENCE_S
from workers.worker.event_loop import EventLoop


async def value(number: int) -> int:
    return number


def test_every_coroutine_gives_its_result_or_what_it_raised() -> None:
    async def broken() -> int:
        raise ValueError("no")

    pages = list(EventLoop().run_each([value(1), broken(), value(3)], lambda: False))
    outcomes = {index: outcome for page in pages for index, outcome, _ in page}
    assert (outcomes[0], str(outcomes[1]), outcomes[2]) == (1, "no", 3)


def test_a_loop_that_is_stopped_ends_what_runs_on_it_and_can_begin_again() -> None:
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


def test_what_is_cancelled_ends_even_if_it_never_began() -> None:
    loop = EventLoop()
    loop.get().call_soon_threadsafe(time.sleep, 0.6)  # a busy loop: the work is begun and cancelled in one go
    pages = list(loop.run_each([asyncio.sleep(60, n) for n in range(3)], lambda: True))
    outcomes = [outcome for page in pages for _, outcome, _ in page]
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 3
