"""Rate limits of an API, shared by processes: several limiters on the same Redis, each with its own connection."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from config import keys
from config.profiles import Profile
from config.queues import Priority
from tasks import lua
from tasks.providers.limiter import EXCHANGE, Limiter
from tasks.providers.permit import CallResult, Permit
from tests.support.programs import PATIENCE_S

T = TypeVar("T")
OK = CallResult(ok=True)
LIMITED = CallResult(limited=True)
#: Seconds after which a test fails because the limiter has not admitted its calls.
LONG_S = PATIENCE_S
FAILED = CallResult(failed=True, reason="500: broken")


def profile(**fields: Any) -> Profile:
    given = {"name": "main", "base_url": "http://nowhere.example/v1", "models": ("m",), "window_s": 1.0}
    return Profile.model_validate(given | fields)


def fixed(number: int, **fields: Any) -> Profile:
    """Make a profile with a fixed ceiling for calls in flight."""
    return profile(concurrency=number, concurrency_start=number, concurrency_min=number, **fields)


def run(redis_url: str, processes: int, do: Callable[..., Awaitable[T]]) -> T:
    async def with_limiters() -> T:
        states = [AsyncRedis.from_url(redis_url, decode_responses=True) for _ in range(processes)]
        limiters = [Limiter(state, f"process {number}") for number, state in enumerate(states)]
        try:
            async with asyncio.timeout(LONG_S):
                return await do(*limiters)
        finally:
            for limiter, state in zip(limiters, states, strict=True):
                await limiter.close()
                await state.aclose()

    return asyncio.run(with_limiters())


async def call(
    limiter: Limiter,
    shared: Profile,
    job: str = "j",
    priority: Priority = "normal",
    tokens: int = 10,
    hold_s: float = 0.0,
) -> tuple[float, str]:
    """Make a call. Return the time at which the limiter admitted it, and its job."""
    while True:
        turn = await limiter.acquire(shared, job, priority, tokens)
        at = time.monotonic()
        if not turn.is_stale:  # checked after `at` is read, so that `at` lies before the permit expires
            break
        limiter.give_back(shared, turn)  # happens on a very busy machine
    await asyncio.sleep(hold_s)
    limiter.release(shared, turn, OK, tokens)
    return at, job


def most_in_any(times: list[float], window_s: float) -> int:
    times = sorted(times)
    return max(sum(1 for at in times[first:] if at - start <= window_s) for first, start in enumerate(times))


def waiting_calls(state: Redis) -> int:
    """Return the number of waiting calls, summed over the reports of every process."""
    reports = [json.loads(text)["wants"] for text in state.hvals(keys.api_holders("main"))]
    return sum(want["count"] for wants in reports for want in wants)


def test_two_processes_share_a_rate_limit(redis_url: str) -> None:
    shared = fixed(100, rpm=6000)  # 100 per second

    async def both(one: Limiter, other: Limiter) -> list[tuple[float, str]]:
        return await asyncio.gather(*(call(each, shared) for each in (one, other) for _ in range(150)))

    times = [at for at, _ in run(redis_url, 2, both)]
    assert most_in_any(times, 1.0) <= 105


def test_an_idle_second_does_not_allow_twice_the_limit_afterwards(redis_url: str) -> None:
    shared = fixed(1000, rpm=6000)

    async def bursts(limiter: Limiter) -> list[tuple[float, str]]:
        done = list(await asyncio.gather(*(call(limiter, shared) for _ in range(60))))
        await asyncio.sleep(1.2)
        return done + list(await asyncio.gather(*(call(limiter, shared) for _ in range(150))))

    assert most_in_any([at for at, _ in run(redis_url, 1, bursts)], 1.0) <= 105


def test_a_small_limit_is_never_exceeded_by_a_call(redis_url: str) -> None:
    shared = fixed(100, rpm=600)  # 10 per second, of which an exchange with Redis admits at most five

    at_once: Counter[float] = Counter()

    async def counted(limiter: Limiter) -> tuple[float, str]:
        turn = await limiter.acquire(shared, "j", "normal", 10)
        at_once[turn.use_by] += 1  # the permits of an exchange with Redis have the same expiry
        limiter.give_back(shared, turn)
        return await call(limiter, shared)

    async def all_calls(limiter: Limiter) -> list[tuple[float, str]]:
        return await asyncio.gather(*(counted(limiter) for _ in range(25)))

    times = [at for at, _ in run(redis_url, 1, all_calls)]
    assert max(at_once.values()) == 5
    assert most_in_any(times, 1.0) <= 10


def test_two_processes_share_the_limit_of_calls_in_flight(redis_url: str) -> None:
    shared = fixed(10)
    in_flight = peak = 0

    async def counted(limiter: Limiter) -> None:
        nonlocal in_flight, peak
        turn = await limiter.acquire(shared, "j", "normal", 1)
        in_flight += 1
        peak = max(peak, in_flight)
        await asyncio.sleep(0.02)
        in_flight -= 1
        limiter.release(shared, turn, OK)

    async def both(one: Limiter, other: Limiter) -> None:
        await asyncio.gather(*(counted(each) for each in (one, other) for _ in range(60)))

    run(redis_url, 2, both)
    assert peak <= 10


def test_reserved_tokens_are_replaced_by_the_tokens_used(redis_url: str, state: Redis) -> None:
    """30 calls reserve 1,500,000 tokens, which would take 500 s under the limit, and use 3,000, which take 1 s."""
    shared = fixed(1000, tpm=180_000, window_s=60.0)

    async def generous(limiter: Limiter) -> None:
        for _ in range(30):
            turn = await limiter.acquire(shared, "j", "normal", 50_000)
            limiter.release(shared, turn, OK, 100)

    run(redis_url, 1, generous)
    assert int(state.hget(keys.api_pace("main"), "tokens") or 0) <= 3000


def test_used_tokens_count_against_the_limit(redis_url: str) -> None:
    shared = fixed(1000, tpm=600_000)

    async def greedy(limiter: Limiter) -> list[tuple[float, str]]:
        return await asyncio.gather(*(call(limiter, shared, tokens=500) for _ in range(40)))

    times = [at for at, _ in run(redis_url, 1, greedy)]
    assert most_in_any(times, 1.0) <= 21


def test_a_call_with_more_tokens_than_the_limit_is_still_admitted(redis_url: str) -> None:
    shared = fixed(10, tpm=600)  # 10 per second
    run(redis_url, 1, lambda limiter: call(limiter, shared, tokens=5000))


def test_calls_are_admitted_in_the_order_interactive_normal_bulk(redis_url: str, state: Redis) -> None:
    shared = fixed(1)

    async def all_waiting(one: Limiter, other: Limiter) -> list[tuple[float, str]]:
        first = await one.acquire(shared, "first", "bulk", 1)
        ranks: tuple[Priority, ...] = ("bulk", "normal", "interactive")
        waiting = [
            asyncio.create_task(call(limiter, shared, job=rank, priority=rank))
            for rank in ranks
            for limiter in (one, other)
            for _ in range(3)
        ]
        while waiting_calls(state) < len(waiting):
            await asyncio.sleep(0.01)
        one.release(shared, first, OK)
        return await asyncio.gather(*waiting)

    order = [job for _, job in sorted(run(redis_url, 2, all_waiting))]
    assert order == ["interactive"] * 6 + ["normal"] * 6 + ["bulk"] * 6


def test_a_small_job_gets_its_share_beside_a_large_job_of_other_processes(redis_url: str) -> None:
    """The large job calls from three processes and the small job from a single process: each gets half of the calls."""
    shared = fixed(8)

    async def large_then_small(*limiters: Limiter) -> list[tuple[float, str]]:
        *many, one = limiters
        large = [asyncio.create_task(call(each, shared, job="large", hold_s=0.02)) for each in many for _ in range(200)]
        await asyncio.sleep(0.2)
        small = [asyncio.create_task(call(one, shared, job="small", hold_s=0.02)) for _ in range(80)]
        return await asyncio.gather(*large, *small)

    served = [job for _, job in sorted(run(redis_url, 4, large_then_small))]
    first, last = served.index("small"), len(served) - 1 - served[::-1].index("small")
    assert 0.6 * 80 <= served[first:last].count("large") <= 1.4 * 80


def test_calls_in_flight_of_a_dead_process_are_released(redis_url: str, state: Redis) -> None:
    shared = fixed(5)
    long_ago = float(state.time()[0]) - 11
    dead = {"held": 5, "at": long_ago, "wants": [{"rank": 1, "job_id": "j", "count": 50}]}
    state.hset(keys.api_holders("main"), "dead", json.dumps(dead))
    run(redis_url, 1, lambda limiter: call(limiter, shared))
    assert not state.hexists(keys.api_holders("main"), "dead")
    state.hset(keys.api_holders("main"), "alive", json.dumps(dead | {"at": float(state.time()[0])}))

    async def wait_without_success(limiter: Limiter) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await limiter.acquire(shared, "j", "interactive", 1)

    run(redis_url, 1, wait_without_success)


def test_an_unused_permit_does_not_count(redis_url: str, state: Redis) -> None:
    shared = fixed(5, rpm=6000)

    async def give_back(limiter: Limiter) -> None:
        turn = await limiter.acquire(shared, "j", "normal", 7)
        limiter.give_back(shared, turn)

    run(redis_url, 1, give_back)
    pace = state.hgetall(keys.api_pace("main"))
    assert (pace["requests"], pace["tokens"]) == ("0", "0")


class Pace:
    """Driver of the limiter's Lua script: reports results, and keeps as many calls in flight as it permits."""

    def __init__(self, state: Redis, **fields: Any) -> None:
        self._state, self._script = state, state.register_script(lua.load(EXCHANGE))
        shared = profile(**fields)
        self._limits = shared.model_dump(mode="json", exclude={"rpm", "tpm"}) | {
            "rpm": 0, "tpm": 0, "margin_s": 0.25, "most_given": 1000,
        }  # fmt: skip
        self.held = 0

    def tell(self, ended: CallResult | None = None, times: int = 0, wants: int = 1000) -> int:
        """Report this number of calls with the same result. Return the ceiling afterwards."""
        asked: dict[str, Any] = {
            "limits": self._limits, "held": self.held, "ok": 0, "failed": 0, "limited": 0, "settled": [], "spent": [],
            "retry_after_s": ended.retry_after_s if ended else 0, "reason": ended.reason if ended else "",
            "latency": {}, "wants": [{"rank": 2, "job_id": "j", "count": wants, "tokens": 1}] if wants else [],
        }  # fmt: skip
        if ended:
            asked |= {"ok": ended.ok * times, "failed": ended.failed * times, "limited": ended.limited * times}
            self.held = asked["held"] = max(self.held - times, 0)
        reply = json.loads(self._script(keys=[], args=["main", "p", "2026-01-01", json.dumps(asked)]))
        self.why = reply["why"]
        self.held += sum(granted["count"] for granted in reply["granted"])
        return int(reply["ceiling"])

    def age(self, seconds: float) -> None:
        """Make the last 429 this much older."""
        until = float(self._state.hget(keys.api_pace("main"), "cut_until") or 0)
        self._state.hset(keys.api_pace("main"), "cut_until", until - seconds)


def test_the_ceiling_doubles_until_the_first_429_and_then_grows_slowly(state: Redis) -> None:
    pace = Pace(state)
    assert [pace.tell(), pace.tell(OK, 20), pace.tell(OK, 40), pace.tell(OK, 80)] == [20, 40, 80, 100]
    assert pace.tell(LIMITED, 1) == 80
    assert pace.tell(LIMITED, 1) == 80, "a burst of 429s lowers the ceiling by a fifth only once"
    pace.age(15)
    assert pace.tell(LIMITED, 1) == 64
    assert pace.tell(OK, 64) == 67
    for _ in range(20):
        pace.age(15)
        ceiling = pace.tell(LIMITED, 1)
    assert ceiling == 10


def test_retry_after_lengthens_the_minimum_time_between_two_cuts(state: Redis) -> None:
    pace = Pace(state)
    pace.tell()
    assert pace.tell(CallResult(limited=True, retry_after_s=40), 1) == 16
    pace.age(30)
    assert pace.tell(LIMITED, 1) == 16


def test_errors_of_the_api_delay_growth_but_do_not_lower_the_ceiling(state: Redis) -> None:
    pace = Pace(state)
    pace.tell()
    pace.tell(OK, 15)
    assert pace.tell(FAILED, 1) == 20
    assert pace.tell(OK, 10) == 20
    assert pace.tell(OK, 10) == 40


def test_the_ceiling_does_not_grow_while_it_is_not_reached(state: Redis) -> None:
    pace = Pace(state)
    pace.tell(wants=5)
    for _ in range(20):
        assert pace.tell(OK, 5, wants=5) == 20


def test_a_long_retry_after_opens_the_circuit(state: Redis) -> None:
    pace = Pace(state)
    pace.tell()
    pace.tell(CallResult(limited=True, retry_after_s=600, reason="come back later"), 1)
    assert pace.why == "open"
    assert state.hget(keys.api_circuit("main"), "reason") == "come back later"


def test_the_circuit_stays_open_for_longer_each_time(state: Redis) -> None:
    pace = Pace(state, circuit_failures=3, circuit_open_s=5)
    pace.tell()
    open_s = []
    for _ in range(6):
        pace.tell(FAILED, 3)
        circuit = state.hgetall(keys.api_circuit("main"))
        seconds, microseconds = state.time()
        open_s.append(round(float(circuit["until"]) - seconds - microseconds / 1e6))
        state.hset(keys.api_circuit("main"), "until", 0)
        held = pace.held
        pace.tell()
        assert pace.held == held + 1, "half open: a single call probes the API"
        pace.tell()
        assert (pace.held, pace.why) == (held + 1, "half_open")
    assert open_s == [5, 10, 20, 40, 60, 60]
    pace.tell(OK, 1)
    assert not state.exists(keys.api_circuit("main"))


def test_waiting_calls_cost_few_redis_commands(redis_url: str, state: Redis) -> None:
    shared = fixed(1, rpm=60)

    async def wait_and_cancel(limiter: Limiter) -> None:
        first: Permit = await limiter.acquire(shared, "j", "normal", 1)
        waiting = [asyncio.create_task(call(limiter, shared)) for _ in range(2000)]
        await asyncio.sleep(1)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        limiter.release(shared, first, OK)

    before = state.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    run(redis_url, 1, wait_and_cancel)
    assert state.info("commandstats")["cmdstat_evalsha"]["calls"] - before < 60


def test_every_key_of_an_api_has_a_ttl(redis_url: str, state: Redis) -> None:
    run(redis_url, 1, lambda limiter: call(limiter, fixed(5, rpm=6000, tpm=60_000)))
    found = state.keys("assay:api:*")
    assert len(found) >= 3
    assert [key for key in found if state.ttl(key) < 0] == []
