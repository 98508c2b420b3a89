"""Shared core of the trainer adapters: batches concurrent reward calls into as few jobs as possible.

Calls that arrive within a few milliseconds of each other, from any thread or event loop, become a single job; their
groups stay separate. A daemon thread with its own event loop does the work; the first call in a process starts it.
A fork or a pickle takes over only the settings, no open thread or connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from assay.async_client import AsyncAssay, AsyncJob
from assay.errors import InvalidRequest, WaitTimeout
from assay.model import ItemError, Row
from assay.retry import Retry
from assay.rewards.spec import RewardLike, RewardSpec, named_reward, parse_reward

Item = Mapping[str, Any]

#: Seconds that the first call of a batch waits for further calls.
WINDOW_S = 0.005
#: Number of items at which a batch is submitted without further waiting.
MAX_ITEMS = 4_000
#: Seconds that the server may delay its response to a submit: most jobs of a training step end within this time.
SUBMIT_WAIT_S = 20.0
#: Seconds after the timeout at which the server ends the job itself, in case the trainer process has died.
ORPHAN_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Settings:
    reward: RewardLike
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 300.0
    """Items without an outcome after this time are invalid, and the job is cancelled."""
    window_s: float = WINDOW_S
    priority: str = "interactive"
    cache: str = "use"
    retry: Retry | None = None
    """Retry policy for a server that is unavailable; by default the call fails after two minutes of retries."""


_creation_lock = threading.Lock()


def _replace_creation_lock() -> None:
    """Replace the lock in a forked process: if another thread held it during the fork, it would stay locked forever."""
    global _creation_lock
    _creation_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_creation_lock)


class RewardClient:
    """Client that scores items (`prompt`, `response`, `reference`, `group_id`, `response_tokens`, ...): a row per item.

    Threads, event loops and forked processes may share an instance, and it can be pickled.
    """

    def __init__(self, reward: RewardLike, **settings: Any) -> None:
        """Settings are those of `Settings`: url, token, timeout_s, window_s, priority, cache, retry."""
        parse_reward(reward)  # an invalid reward raises now, not at the first training step
        self._settings = Settings(reward, **settings)
        self._thread: _BatchingThread | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_thread": None}

    def score(self, items: Sequence[Item]) -> list[Row]:
        """Score items; block until every item has a row, at most `timeout_s`."""
        return self.submit(items).result()

    async def score_async(self, items: Sequence[Item]) -> list[Row]:
        return await asyncio.wrap_future(self.submit(items))

    def submit(self, items: Sequence[Item]) -> Future[list[Row]]:
        call = _PendingCall(list(items))
        if call.items:
            self._thread_of_this_process().put(call)
        else:
            call.rows.set_result([])
        return call.rows

    def reward(self) -> RewardSpec:
        """Return the spec of the reward; a reward given by name is looked up on the server."""
        return self._thread_of_this_process().reward().result()

    async def reward_async(self) -> RewardSpec:
        return await asyncio.wrap_future(self._thread_of_this_process().reward())

    def close(self) -> None:
        """Wait for the calls in flight, then stop the thread and close its connections. A later call restarts it."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.process == os.getpid():
            thread.close()

    def _thread_of_this_process(self) -> _BatchingThread:
        with _creation_lock:
            if self._thread is None or self._thread.process != os.getpid():
                self._thread = _BatchingThread(self._settings)
            return self._thread


@dataclass
class _PendingCall:
    items: list[Item]
    rows: Future[list[Row]] = field(default_factory=Future)


class _BatchingThread:
    """Thread with an event loop that batches calls into jobs. Only `put`, `reward` and `close` run on other threads."""

    def __init__(self, settings: Settings) -> None:
        self.process = os.getpid()
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._pending: list[_PendingCall] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: AsyncAssay | None = None
        self._reward_task: asyncio.Task[RewardSpec] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="assay-rewards", daemon=True)
        self._thread.start()

    def put(self, call: _PendingCall) -> None:
        self._loop.call_soon_threadsafe(self._add, call)

    def reward(self) -> Future[RewardSpec]:
        return asyncio.run_coroutine_threadsafe(self._reward(), self._loop)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        self._flush()
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._client is not None:
            await self._client.close()

    def _add(self, call: _PendingCall) -> None:
        self._pending.append(call)
        if sum(len(each.items) for each in self._pending) >= MAX_ITEMS:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._settings.window_s, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._pending = self._pending, []
        # Drop calls whose future was cancelled; from here on a future cannot be cancelled any more.
        calls = [call for call in calls if call.rows.set_running_or_notify_cancel()]
        if calls:
            task = self._loop.create_task(self._complete(calls))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _complete(self, calls: Sequence[_PendingCall]) -> None:
        try:
            rows = await self._score([_with_own_group(item, n) for n, call in enumerate(calls) for item in call.items])
        except InvalidRequest as error:
            if len(calls) > 1:  # an invalid item of a call must not fail the other calls: submit each call separately
                await asyncio.gather(*(self._complete([call]) for call in calls))
            else:
                calls[0].rows.set_exception(error)
        except Exception as error:  # noqa: BLE001  # raised in the threads that wait for these futures
            for call in calls:
                call.rows.set_exception(error)
        else:
            start = 0
            for call in calls:
                end = start + len(call.items)
                own = zip(call.items, rows[start:end])
                call.rows.set_result(
                    [replace(row, index=n, group_id=item.get("group_id")) for n, (item, row) in enumerate(own)]
                )
                start = end

    async def _score(self, items: Sequence[Item]) -> list[Row]:
        settings, ends = self._settings, time.monotonic() + self._settings.timeout_s
        reward = await self._reward()
        job = await self._assay().submit(
            "score",
            items,
            reward.spec,
            priority=settings.priority,
            cache=settings.cache,
            deadline_s=settings.timeout_s + ORPHAN_TIMEOUT_S,
            wait_s=min(SUBMIT_WAIT_S, settings.timeout_s),
        )
        late = Row(-1, status="timed_out", error=ItemError("timed_out", f"No reward within {settings.timeout_s:g} s."))
        rows = [late] * len(items)
        for row in await self._rows(job, ends):
            rows[row.index] = row
        return rows

    async def _rows(self, job: AsyncJob, ends: float) -> list[Row]:
        try:
            await job.wait(max(0.0, ends - time.monotonic()), progress=False)
            return [row async for row in job.results()]
        except WaitTimeout:
            rows = [row async for row in job.results(wait=False)]
            await job.cancel()
            return rows

    async def _reward(self) -> RewardSpec:
        """Return the spec of the reward, looked up once; a failed lookup is not cached."""
        if self._reward_task is None or (self._reward_task.done() and self._reward_task.exception() is not None):
            self._reward_task = self._loop.create_task(self._look_up())
        return await asyncio.shield(self._reward_task)

    async def _look_up(self) -> RewardSpec:
        given = parse_reward(self._settings.reward)
        if isinstance(given, str):
            return named_reward(given, await self._assay().rewards())
        return given

    def _assay(self) -> AsyncAssay:
        if self._client is None:
            self._client = AsyncAssay(self._settings.url, self._settings.token, retry=self._settings.retry)
        return self._client


def _with_own_group(item: Item, call: int) -> Item:
    """Prefix the group id with the number of the call: two callers may both have a group "0"."""
    return {**item, "group_id": f"{call}:{item['group_id']}"} if item.get("group_id") is not None else item
