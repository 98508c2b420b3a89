"""The one core of all trainer adapters: items in, rows out, through as few jobs as possible.

Calls that arrive within a few milliseconds of each other, from any thread or event loop, become one job; their groups
stay apart. All of it happens on one daemon thread with an event loop of its own, started by the first call of a
process: a fork or a pickle carries settings along and nothing that is open.
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
from assay.rewards.spec import RewardLike, RewardSpec, named_reward, read_reward

Item = Mapping[str, Any]

#: Seconds that the first call of a job waits for others.
WINDOW_S = 0.005
#: Items that make a job go at once.
MOST_ITEMS = 4_000
#: Seconds that the server may hold its answer to a submit: most jobs of a trainer's step are done by then.
HELD_S = 20.0
#: Seconds after the timeout when a job ends by itself, should its trainer be gone.
ORPHANED_S = 30.0


@dataclass(frozen=True)
class Settings:
    reward: RewardLike
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 300.0
    """What has no outcome by then is invalid, and the job is cancelled."""
    window_s: float = WINDOW_S
    priority: str = "interactive"
    cache: str = "use"
    retry: Retry | None = None
    """How long to keep trying when the server is away; two minutes if not given, then the call fails."""


_making = threading.Lock()


def _make_anew() -> None:
    """A lock that another thread held when this process was forked would never be free again."""
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_make_anew)


class RewardClient:
    """Rewards for items (`prompt`, `response`, `reference`, `group_id`, `response_tokens`, ...), one row for each.

    Threads, event loops and forked processes may share it, and it can be pickled.
    """

    def __init__(self, reward: RewardLike, **settings: Any) -> None:
        """Settings are those of `Settings`: url, token, timeout_s, window_s, priority, cache, retry."""
        read_reward(reward)  # what is wrong with it is said now, not at the first step
        self._settings = Settings(reward, **settings)
        self._pump: _Pump | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_pump": None}

    def score(self, items: Sequence[Item]) -> list[Row]:
        """Blocks until every item has a row, or the time is up."""
        return self.submit(items).result()

    async def score_async(self, items: Sequence[Item]) -> list[Row]:
        return await asyncio.wrap_future(self.submit(items))

    def submit(self, items: Sequence[Item]) -> Future[list[Row]]:
        call = _Call(list(items))
        if call.items:
            self._of_this_process().put(call)
        else:
            call.rows.set_result([])
        return call.rows

    def reward(self) -> RewardSpec:
        """What is asked for; by a name, as the server has it."""
        return self._of_this_process().reward().result()

    async def reward_async(self) -> RewardSpec:
        return await asyncio.wrap_future(self._of_this_process().reward())

    def close(self) -> None:
        """Wait for what is under way, then let go of thread and connections. A further call makes new ones."""
        pump, self._pump = self._pump, None
        if pump is not None and pump.process == os.getpid():
            pump.close()

    def _of_this_process(self) -> _Pump:
        with _making:
            if self._pump is None or self._pump.process != os.getpid():
                self._pump = _Pump(self._settings)
            return self._pump


@dataclass
class _Call:
    items: list[Item]
    rows: Future[list[Row]] = field(default_factory=Future)


class _Pump:
    """The thread. Everything below `put` and `reward` runs on its loop."""

    def __init__(self, settings: Settings) -> None:
        self.process = os.getpid()
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._waiting: list[_Call] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: AsyncAssay | None = None
        self._known: asyncio.Task[RewardSpec] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="assay-rewards", daemon=True)
        self._thread.start()

    def put(self, call: _Call) -> None:
        self._loop.call_soon_threadsafe(self._add, call)

    def reward(self) -> Future[RewardSpec]:
        return asyncio.run_coroutine_threadsafe(self._reward(), self._loop)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        self._send()
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._client is not None:
            await self._client.close()

    def _add(self, call: _Call) -> None:
        self._waiting.append(call)
        if sum(len(each.items) for each in self._waiting) >= MOST_ITEMS:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._settings.window_s, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._waiting = self._waiting, []
        # A call whose waiter has left is not made; from here on it cannot be taken back.
        calls = [call for call in calls if call.rows.set_running_or_notify_cancel()]
        if calls:
            task = self._loop.create_task(self._answer(calls))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, calls: Sequence[_Call]) -> None:
        try:
            rows = await self._score([_apart(item, n) for n, call in enumerate(calls) for item in call.items])
        except InvalidRequest as error:
            if len(calls) > 1:  # one caller's mistake is not another's
                await asyncio.gather(*(self._answer([call]) for call in calls))
            else:
                calls[0].rows.set_exception(error)
        except Exception as error:  # noqa: BLE001  # raised where somebody waits for it
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
            deadline_s=settings.timeout_s + ORPHANED_S,
            wait_s=min(HELD_S, settings.timeout_s),
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
        """Looked up once. A failure is not kept."""
        if self._known is None or (self._known.done() and self._known.exception() is not None):
            self._known = self._loop.create_task(self._look_up())
        return await asyncio.shield(self._known)

    async def _look_up(self) -> RewardSpec:
        given = read_reward(self._settings.reward)
        if isinstance(given, str):
            return named_reward(given, await self._assay().rewards())
        return given

    def _assay(self) -> AsyncAssay:
        if self._client is None:
            self._client = AsyncAssay(self._settings.url, self._settings.token, retry=self._settings.retry)
        return self._client


def _apart(item: Item, call: int) -> Item:
    """With a group of its own call: two callers may both have a group "0"."""
    return {**item, "group_id": f"{call}:{item['group_id']}"} if item.get("group_id") is not None else item
