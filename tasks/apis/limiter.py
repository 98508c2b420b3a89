"""Who may call an API now: limits that hold for all processes together, kept by `scripts/exchange.lua` in Redis.

A process has one desk per profile. Its callers wait there, and the desk alone talks to Redis: it tells what became of
calls, says how many wait for which job, and is told how many may begin. So thousands who wait cost one small script a
few times a second. What a call is, and whether it is tried again, is not known here.
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

from config import keys
from config.profiles import Profile
from config.queues import PRIORITIES, Priority
from tasks import totals
from tasks.apis.turn import CircuitOpen, Ended, Told, Turn
from tasks.errors import ApiUnavailable, BudgetSpent

log = logging.getLogger(__name__)

_SCRIPTS = Path(__file__).with_name("scripts")

#: Calls let through in one exchange at most: more would leave this process later than they should.
MOST_GIVEN = 64
#: Share of a window, and least seconds, that a call may take from its turn to the API.
MARGIN, LEAST_MARGIN_S = 0.02, 0.25
#: Seconds between two exchanges at least; while somebody waits, at most; and while calls are only in flight.
LEAST_PAUSE_S, WAITING_S, HOLDING_S = 0.005, 0.5, 3.0
#: Seconds after which to ask again when another process has the turn, or holds what is needed.
TURN_S, CEILING_S = 0.02, 0.05
#: Seconds between two tries while Redis is away.
RETRY_S = 1.0


@dataclass(slots=True, eq=False)
class _Waiter:
    turn: asyncio.Future[Turn]
    tokens: int
    budget_nano: int | None


def load_scripts() -> str:
    """`exchange.lua` with its parts and key names, as one script."""
    parts = ["common.lua", *sorted(path.name for path in _SCRIPTS.glob("part_*.lua")), "exchange.lua"]
    return keys.lua_functions() + totals.lua() + "".join((_SCRIPTS / name).read_text() for name in parts)


def margin_s(window_s: float) -> float:
    return max(MARGIN * window_s, LEAST_MARGIN_S)


class Limiter:
    """The desks of one process, on one asyncio loop."""

    def __init__(self, state: Redis, holder: str = "") -> None:
        self._state = state
        self._holder = holder or uuid4().hex
        self._exchange = state.register_script(load_scripts())
        self._desks: dict[str, _Desk] = {}

    async def acquire(
        self, profile: Profile, job: str, priority: Priority, tokens: int, budget_nano: int | None = None
    ) -> Turn:
        """Wait for a turn; every turn is given back by `release`. Raises CircuitOpen and BudgetSpent."""
        return await self._desk(profile).wait(PRIORITIES.index(priority) + 1, job, tokens, budget_nano)

    def release(self, profile: Profile, turn: Turn, ended: Ended, used_tokens: int | None = None) -> None:
        """The call has ended; None: nobody said how many tokens it used."""
        self._desk(profile).end(turn, ended, used_tokens)

    def give_back(self, profile: Profile, turn: Turn) -> None:
        """The call was never made."""
        self._desk(profile).give_back(turn)

    async def close(self) -> None:
        """Tell what is left to tell. Nobody may wait any more."""
        for desk in self._desks.values():
            await desk.close()

    def _desk(self, profile: Profile) -> "_Desk":
        desk = self._desks.get(profile.name)
        if desk is None:
            desk = self._desks[profile.name] = _Desk(self._exchange, self._holder, profile)
        return desk


class _Desk:
    def __init__(self, exchange: Any, holder: str, profile: Profile) -> None:
        self._call, self._holder, self._profile = exchange, holder, profile
        self._waiters: dict[tuple[int, str], dict[_Waiter, None]] = {}
        self._told = Told()
        self._held = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._margin_s = margin_s(profile.window_s)
        self._limits = {
            **{name: getattr(profile, name) for name in _LIMITS},
            "rpm": profile.rpm or 0,
            "tpm": profile.tpm or 0,
            "margin_s": self._margin_s,
            "most_given": MOST_GIVEN,
        }

    async def wait(self, rank: int, job: str, tokens: int, budget_nano: int | None) -> Turn:
        waiter = _Waiter(asyncio.get_running_loop().create_future(), tokens, budget_nano)
        group = self._waiters.setdefault((rank, job), {})
        group[waiter] = None
        self._wake()
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self.give_back(waiter.turn.result())  # it came at the same moment
            raise
        finally:
            group.pop(waiter, None)
            if not group and self._waiters.get((rank, job)) is group:
                del self._waiters[rank, job]

    def end(self, turn: Turn, ended: Ended, used_tokens: int | None) -> None:
        self._told.end(turn, ended, used_tokens)
        self._held -= 1
        self._wake()

    def give_back(self, turn: Turn) -> None:
        self._told.settle(turn.slice, -1, -turn.tokens)
        self._held -= 1
        self._wake()

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._held = 0
        await self._exchange({})

    def _wake(self) -> None:
        self._news.set()
        if self._task is None or self._task.done():
            # It serves all, not only the job whose call comes first: that one's context is not its own.
            self._task = asyncio.get_running_loop().create_task(self._serve(), context=Context())

    async def _serve(self) -> None:
        """Runs while somebody waits or calls are in flight."""
        try:
            await self._serve_all()
        finally:  # nobody is left waiting for a desk that is gone
            self._turn_away(ApiUnavailable("The limits of this API are not kept any more: this process ends."))

    async def _serve_all(self) -> None:
        while True:
            self._news.clear()
            pause_s = await self._exchange(self._wants())
            if not self._waiters and self._held == 0 and not self._news.is_set():
                return
            await asyncio.sleep(LEAST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s - LEAST_PAUSE_S):
                    await self._news.wait()

    def _wants(self) -> dict[tuple[int, str], int]:
        """Who waits, with the tokens that one of them takes on average."""
        wants = {}
        for key, group in self._waiters.items():
            first = [waiter.tokens for waiter, _ in zip(group, range(MOST_GIVEN), strict=False)]
            if first:
                wants[key] = -(-sum(first) // len(first))
        return wants

    async def _exchange(self, wants: Mapping[tuple[int, str], int]) -> float:
        """Tell, ask, and hand turns out. Returns the seconds until it is worth asking again."""
        told, self._told = self._told, Told()
        asked = {
            "limits": self._limits,
            "held": self._held,
            **told.as_asked(self._profile.currency),
            "wants": [[rank, job, len(self._waiters[rank, job]), each] for (rank, job), each in wants.items()],
        }
        sent_at = time.monotonic()
        day = time.strftime("%Y-%m-%d", time.gmtime())
        try:
            reply = await self._call(keys=[], args=[self._profile.name, self._holder, day, json.dumps(asked)])
        except RedisError as error:
            log.warning("limits of profile %s cannot be asked for, Redis says: %s", self._profile.name, error)
            self._told.add(told)  # some of it may be heard twice, which errs on the side of fewer calls
            return RETRY_S
        wait_s, why, slice_, _ceiling, reason, *rest = reply
        use_by = sent_at + self._margin_s
        for (key, tokens), given, cost in zip(wants.items(), rest[::2], rest[1::2], strict=True):
            self._hand_out(key, int(given), Turn(int(slice_), tokens, use_by), int(cost))
        if why == "open":
            self._turn_away(CircuitOpen(float(wait_s), reason))
        return self._pause_s(float(wait_s), why)

    def _hand_out(self, key: tuple[int, str], given: int, turn: Turn, cost: int) -> None:
        self._held += given
        waiting = self._waiters.get(key, {})
        for waiter in list(waiting):
            if waiter.turn.done():
                continue
            if waiter.budget_nano is not None and cost >= waiter.budget_nano:
                waiter.turn.set_exception(BudgetSpent(f"The job's budget is used up ({cost / 1e9:g} spent)."))
            elif given:
                given -= 1
                waiter.turn.set_result(turn)
            else:
                continue
            del waiting[waiter]
        for _ in range(given):
            self.give_back(turn)

    def _turn_away(self, error: ApiUnavailable) -> None:
        for group in self._waiters.values():
            for waiter in list(group):
                if not waiter.turn.done():
                    waiter.turn.set_exception(error)
                    del group[waiter]

    def _pause_s(self, wait_s: float, why: str) -> float:
        if not self._waiters:
            return HOLDING_S
        known = {"turn": TURN_S, "ceiling": CEILING_S, "half_open": CEILING_S}.get(why, wait_s or LEAST_PAUSE_S)
        return min(max(known, LEAST_PAUSE_S), WAITING_S)


_LIMITS = (
    "window_s", "concurrency", "concurrency_start", "concurrency_min", "timeout_s", "circuit_failures",
    "circuit_open_s", "currency",
)  # fmt: skip
