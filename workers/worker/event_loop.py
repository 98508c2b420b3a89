"""Asyncio event loop of a process, in its own thread; the threads that run tasks submit coroutines to it."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds between two checks whether the work was cancelled.
LOOK_S = 0.25
#: Maximum seconds for running coroutines to end when the loop is stopped.
STOP_S = 5.0
#: Results that arrive within this many seconds of each other are yielded as one page: each page is a commit.
PAGE_S = 0.02


class EventLoop:
    """Event loop, started on first use in the process that uses it: a prefork child must not inherit a running loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="asyncio", daemon=True)
                self._thread.start()
            return self._loop

    def stop(self) -> None:
        """Stop the loop if it runs in this process; coroutines that still run on it are cancelled."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop and thread and self._pid == os.getpid():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(STOP_S)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self.get())
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def run_each(
        self, work: Sequence[Coroutine[Any, Any, T]], is_cancelled: Callable[[], bool]
    ) -> Iterator[list[tuple[int, T | BaseException, float]]]:
        """Implement `Runtime.run_each` of `tasks/runtime.py`."""
        ended: SimpleQueue[tuple[int, T | BaseException, float]] = SimpleQueue()
        loop = self.get()
        tasks: list[asyncio.Task[T]] = []

        def start_one(index: int, coroutine: Coroutine[Any, Any, T]) -> None:
            started = time.monotonic()

            def end(task: "asyncio.Task[T]") -> None:  # also called for a task cancelled before its first step
                error = asyncio.CancelledError() if task.cancelled() else task.exception()
                ended.put((index, error or task.result(), time.monotonic() - started))

            task = loop.create_task(coroutine)
            task.add_done_callback(end)
            tasks.append(task)

        def start() -> None:
            for index, coroutine in enumerate(work):
                start_one(index, coroutine)

        loop.call_soon_threadsafe(start)
        left, last = len(work), 0.0
        try:
            while left:
                page = _drain(ended, LOOK_S)
                if page:
                    if (pause_s := last + PAGE_S - time.monotonic()) > 0:
                        time.sleep(pause_s)
                        page += _drain(ended, 0)
                    left, last = left - len(page), time.monotonic()
                    yield page
                if left and is_cancelled():
                    loop.call_soon_threadsafe(_cancel, tasks)
        finally:
            if left:  # the caller stopped reading pages
                loop.call_soon_threadsafe(_cancel, tasks)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(_end_the_rest())
    loop.close()


async def _end_the_rest() -> None:
    left = list(asyncio.all_tasks() - {asyncio.current_task()})
    _cancel(left)
    await asyncio.gather(*left, return_exceptions=True)


def _drain(queue: "SimpleQueue[T]", wait_s: float) -> list[T]:
    """Return every available result; wait for the first."""
    page: list[T] = []
    try:
        page.append(queue.get(timeout=wait_s) if wait_s else queue.get_nowait())
        while True:
            page.append(queue.get_nowait())
    except Empty:
        return page


def _cancel(tasks: "Sequence[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
