"""Rate limiter of API calls, shared by the processes of a cluster: requests and tokens per window, and calls in flight.

A process has a client per profile. Callers wait at their client, and only the client talks to Redis
(`scripts/exchange.lua`): it reports the results of calls and the number of waiting calls per job, and receives permits
for the calls that may begin. Thus thousands of waiting calls cost a small script a few times a second. Not covered:
making and retrying calls.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import RedisError

from config.profiles import Profile
from config.queues import PRIORITIES, Priority
from tasks import lua
from tasks.errors import ApiUnavailable, BudgetSpent
from tasks.providers.permit import CallReport, CallResult, CircuitOpen, Permit

log = logging.getLogger(__name__)

EXCHANGE = Path(__file__).with_name("scripts") / "exchange.lua"

#: Maximum calls granted per exchange: with more, the last calls could miss the deadline of their permit.
MOST_GIVEN = 64
#: Time that a call may take from its permit to the API: this share of a window, but at least these seconds.
MARGIN, LEAST_MARGIN_S = 0.02, 0.25
#: Seconds between two exchanges: minimum; maximum while calls wait; maximum while calls are only in flight.
LEAST_PAUSE_S, WAITING_S, HOLDING_S = 0.005, 0.5, 3.0
#: Seconds until the next exchange when it is a different process's turn, or the ceiling is reached.
TURN_S, CEILING_S = 0.02, 0.05
#: Seconds between two tries while Redis is unavailable.
RETRY_S = 1.0

_Key = tuple[int, str]
"""Rank of the priority, counted from 1, and job id: calls with the same key wait in a common line."""


@dataclass(slots=True, eq=False)
class _Waiter:
    permit: asyncio.Future[Permit]
    tokens: int
    budget_nano: int | None


def margin_s(window_s: float) -> float:
    """Return the seconds that a call may take from its permit to the API."""
    return max(MARGIN * window_s, LEAST_MARGIN_S)


class Limiter:
    """The limiter clients of a process, on a single asyncio loop."""

    def __init__(self, state: Redis, holder: str = "") -> None:
        self._state = state
        self._holder = holder or uuid4().hex
        self._exchange = state.register_script(lua.load(EXCHANGE))
        self._clients: dict[str, _Client] = {}

    async def acquire(
        self, profile: Profile, job_id: str, priority: Priority, tokens: int, budget_nano: int | None = None
    ) -> Permit:
        """Wait for a permit; `release` or `give_back` must follow. Raises CircuitOpen and BudgetSpent."""
        return await self._client(profile).acquire(PRIORITIES.index(priority) + 1, job_id, tokens, budget_nano)

    def release(self, profile: Profile, permit: Permit, result: CallResult, used_tokens: int | None = None) -> None:
        """Report the result of a call. `used_tokens` is None when the API did not report it."""
        self._client(profile).release(permit, result, used_tokens)

    def give_back(self, profile: Profile, permit: Permit) -> None:
        """Give back the permit of a call that was never made."""
        self._client(profile).give_back(permit)

    async def close(self) -> None:
        """Send the last reports. No call may be waiting when this is called."""
        for client in self._clients.values():
            await client.close()

    def _client(self, profile: Profile) -> "_Client":
        client = self._clients.get(profile.name)
        if client is None:
            client = self._clients[profile.name] = _Client(self._exchange, self._holder, profile)
        return client


class _Client:
    """Limiter client for a single profile."""

    def __init__(self, exchange: Any, holder: str, profile: Profile) -> None:
        self._call, self._holder, self._profile = exchange, holder, profile
        self._waiters: dict[_Key, dict[_Waiter, None]] = {}
        self._report = CallReport()
        self._held = 0
        self._wakes = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._margin_s = margin_s(profile.window_s)
        self._limits = {
            **{name: getattr(profile, name) for name in _LIMITS},
            "rpm": profile.rpm or 0,
            "tpm": profile.tpm or 0,
            "margin_s": self._margin_s,
            "most_given": MOST_GIVEN,
        }

    async def acquire(self, rank: int, job_id: str, tokens: int, budget_nano: int | None) -> Permit:
        waiter = _Waiter(asyncio.get_running_loop().create_future(), tokens, budget_nano)
        line = self._waiters.setdefault((rank, job_id), {})
        line[waiter] = None
        self._wake()
        try:
            return await waiter.permit
        except asyncio.CancelledError:
            if waiter.permit.done() and not waiter.permit.cancelled() and waiter.permit.exception() is None:
                self.give_back(waiter.permit.result())  # it was granted at the same moment
            raise
        finally:
            line.pop(waiter, None)
            if not line and self._waiters.get((rank, job_id)) is line:
                del self._waiters[rank, job_id]

    def release(self, permit: Permit, result: CallResult, used_tokens: int | None) -> None:
        self._report.add_result(permit, result, used_tokens)
        self._held -= 1
        self._wake()

    def give_back(self, permit: Permit) -> None:
        self._report.settle(permit.slice, -1, -permit.tokens)
        self._held -= 1
        self._wake()

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._held = 0
        await self._exchange({})

    def _wake(self) -> None:
        self._wakes.set()
        if self._task is None or self._task.done():
            # The task serves every job, therefore it must not inherit the context of the job that calls first.
            self._task = asyncio.get_running_loop().create_task(self._serve(), context=Context())

    async def _serve(self) -> None:
        """Exchange with Redis while calls wait or are in flight."""
        try:
            await self._serve_all()
        finally:  # no call may wait for a client that has ended
            self._fail_waiters(ApiUnavailable("This process is stopping and no longer grants calls of this API."))

    async def _serve_all(self) -> None:
        while True:
            self._wakes.clear()
            pause_s = await self._exchange(self._wants())
            if not self._waiters and self._held == 0 and not self._wakes.is_set():
                return
            await asyncio.sleep(LEAST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s - LEAST_PAUSE_S):
                    await self._wakes.wait()

    def _wants(self) -> dict[_Key, int]:
        """Return the lines of waiting calls, each with the mean tokens of its first calls."""
        wants = {}
        for key, line in self._waiters.items():
            first = [waiter.tokens for waiter, _ in zip(line, range(MOST_GIVEN), strict=False)]
            if first:
                wants[key] = -(-sum(first) // len(first))
        return wants

    async def _exchange(self, wants: Mapping[_Key, int]) -> float:
        """Report results, request permits and hand them out. Returns the seconds until the next exchange."""
        report, self._report = self._report, CallReport()
        record = {
            "limits": self._limits,
            "held": self._held,
            **report.as_record(self._profile.currency),
            "wants": [
                {"rank": rank, "job_id": job_id, "count": len(self._waiters[rank, job_id]), "tokens": tokens}
                for (rank, job_id), tokens in wants.items()
            ],
        }
        sent_at = time.monotonic()
        day = time.strftime("%Y-%m-%d", time.gmtime())
        try:
            text = await self._call(keys=[], args=[self._profile.name, self._holder, day, json.dumps(record)])
        except RedisError as error:
            log.warning("cannot exchange the limits of profile %s with Redis: %s", self._profile.name, error)
            self._report.add(report)  # part of it may be counted twice, which only reduces the number of calls
            return RETRY_S
        reply: dict[str, Any] = json.loads(text)
        use_by = sent_at + self._margin_s
        for (key, tokens), granted in zip(wants.items(), reply["granted"], strict=True):
            self._hand_out(key, granted["count"], Permit(reply["slice"], tokens, use_by), granted["cost"])
        if reply["why"] == "open":
            self._fail_waiters(CircuitOpen(reply["wait_s"], reply["reason"]))
        return self._pause_s(reply["wait_s"], reply["why"])

    def _hand_out(self, key: _Key, count: int, permit: Permit, cost_nano: int) -> None:
        """Give permits to the first waiting calls of a line, and fail the calls of jobs with an exhausted budget."""
        self._held += count
        line = self._waiters.get(key, {})
        for waiter in list(line):
            if waiter.permit.done():
                continue
            if waiter.budget_nano is not None and cost_nano >= waiter.budget_nano:
                waiter.permit.set_exception(BudgetSpent(f"The job's budget is used up ({cost_nano / 1e9:g} spent)."))
            elif count:
                count -= 1
                waiter.permit.set_result(permit)
            else:
                continue
            del line[waiter]
        for _ in range(count):
            self.give_back(permit)

    def _fail_waiters(self, error: ApiUnavailable) -> None:
        for line in self._waiters.values():
            for waiter in list(line):
                if not waiter.permit.done():
                    waiter.permit.set_exception(error)
                    del line[waiter]

    def _pause_s(self, wait_s: float, why: str) -> float:
        if not self._waiters:
            return HOLDING_S
        known = {"turn": TURN_S, "ceiling": CEILING_S, "half_open": CEILING_S}.get(why, wait_s or LEAST_PAUSE_S)
        return min(max(known, LEAST_PAUSE_S), WAITING_S)


_LIMITS = (
    "window_s",
    "concurrency",
    "concurrency_start",
    "concurrency_min",
    "timeout_s",
    "circuit_failures",
    "circuit_open_s",
    "currency",
)
