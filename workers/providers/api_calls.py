"""Client of outside APIs: calls are rate-limited, retried if retryable, and fall back on a second profile.

Implements `Ask`. Each process has one instance, on its asyncio loop; HTTP clients are created on first use and shared
by every task and job.
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Self, get_args

from opentelemetry.trace import NoOpTracer, Span, SpanKind, Tracer
from redis.asyncio import Redis
from redis.exceptions import RedisError

from config import keys
from config.profiles import Profile, Profiles, UnknownProfile
from config.settings import SettingsError
from tasks.connections import COMMAND_TIMEOUT_S, create_async_pool
from tasks.errors import ApiRefused, ApiTimeout, ApiUnavailable, ApiUnreachable, AssayError
from tasks.providers.call import ApiCall, ApiReply
from tasks.providers.chat import body_of, estimate_tokens, left_out
from tasks.providers.limiter import Limiter
from tasks.providers.permit import CallResult, CallUsage, CircuitOpen
from tasks.providers.retry import MOST_LIMITED, Failure, Lesson, backoff_s
from tasks.tracing import fail
from workers.providers.client import Answered, ApiClient, TryFailed

log = logging.getLogger(__name__)

#: TTL in Redis of a lesson (a request feature that a model does not support), and seconds for which a process caches
#: the lessons before it reads them again.
LESSON_S, LOOK_S = 86400, 60.0
#: Maximum seconds of an open circuit that a call waits for inside its worker, even if it `may_rest` elsewhere.
WAITED_S = 1.0
#: Redis connections for the calls of a process: one for each profile in use, plus a reserve.
REDIS_CONNECTIONS = 16


class ApiCalls:
    def __init__(
        self,
        profiles: Profiles,
        redis_url: str,
        environment: Mapping[str, str] = os.environ,
        holder: str = "",
        tracer: Tracer | None = None,
    ) -> None:
        """`holder`: a name that is unique among live processes and that a replacement process reuses: the in-flight
        places of a killed process are then free as soon as its replacement calls."""
        self._profiles, self._environment = profiles, environment
        # A blocking pool: the commands of thousands of concurrent calls share a few connections.
        pool = create_async_pool(
            redis_url,
            decode_responses=True,
            max_connections=REDIS_CONNECTIONS,
            timeout=COMMAND_TIMEOUT_S,
            socket_timeout=COMMAND_TIMEOUT_S,
            socket_connect_timeout=COMMAND_TIMEOUT_S,
            health_check_interval=30,
        )
        self._state = Redis.from_pool(pool)
        self._limiter = Limiter(self._state, holder)
        self.tracer = tracer or NoOpTracer()
        self._clients: dict[str, ApiClient] = {}
        self._looking = asyncio.Lock()
        self._lessons: dict[tuple[str, str], tuple[frozenset[Lesson], float]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        await self._limiter.close()
        await self._state.aclose()

    async def __call__(self, call: ApiCall) -> ApiReply:
        """See `Ask`."""
        began = time.monotonic()
        until = None if call.deadline_s is None else began + call.deadline_s
        names, reasons = [call.profile], list[str]()
        while True:
            profile = self._profile(names[-1])
            attempt = _Attempt(self, call, profile, until, is_fallback=len(names) > 1)
            try:
                reply = await attempt.run()
                return replace(reply, latency_s=time.monotonic() - began)
            except CircuitOpen:
                raise
            except (ApiUnavailable, ApiTimeout) as error:
                reasons.append(f"{profile.name}: {error}")
                if not profile.fallback or (until is not None and time.monotonic() >= until):
                    raise type(error)("; ".join(reasons)) from error
                log.info("profile %s falls back on %s: %s", profile.name, profile.fallback, error)
                names.append(profile.fallback)

    def client(self, profile: Profile) -> ApiClient:
        """Return the HTTP client of a profile, created on first use. Raises ApiRefused when the key is missing."""
        client = self._clients.get(profile.name)
        if client is None:
            try:
                client = self._clients[profile.name] = ApiClient(profile, self._environment)
            except SettingsError as error:
                raise ApiRefused(f"This worker cannot call the API: {error}.") from error
        return client

    @property
    def limiter(self) -> Limiter:
        return self._limiter

    async def lessons(self, profile: Profile, model: str) -> frozenset[Lesson]:
        """Return the request features that this model is known not to support, from this process or from Redis."""
        async with self._looking:  # concurrent calls share the lookup
            known, looked_at = self._lessons.get((profile.name, model), (frozenset(), float("-inf")))
            if time.monotonic() - looked_at > LOOK_S:
                try:
                    names = await self._state.hkeys(keys.api_lessons(profile.name, model))
                    known = frozenset(lesson for lesson in get_args(Lesson) if lesson in names)
                except RedisError as error:  # a missing lesson only costs a try: no call fails
                    log.debug("cannot read the lessons of model %s of profile %s: %s", model, profile.name, error)
                self._lessons[profile.name, model] = known, time.monotonic()
        if profile.supports_schema == "auto":
            return known
        return known - {"no_schema"} if profile.supports_schema else known | {"no_schema"}

    async def learn(self, profile: Profile, model: str, lesson: Lesson, message: str) -> None:
        known, _ = self._lessons.get((profile.name, model), (frozenset(), 0.0))
        if lesson in known:  # a concurrent call in flight learnt it first
            return
        log.warning("profile %s, model %s: learnt %s from: %s", profile.name, model, lesson, message)
        self._lessons[profile.name, model] = known | {lesson}, time.monotonic()
        key = keys.api_lessons(profile.name, model)
        try:
            await self._state.hset(key, lesson, message)
            await self._state.expire(key, LESSON_S)
        except RedisError as error:  # this process keeps the lesson; other processes learn it themselves
            log.debug("cannot store a lesson of model %s of profile %s: %s", model, profile.name, error)

    def _profile(self, name: str) -> Profile:
        try:
            return self._profiles.get(name)
        except UnknownProfile as error:
            raise ApiRefused(str(error)) from error


class _Attempt:
    """The tries of a call at a single profile, up to its retry limit."""

    def __init__(
        self, calls: ApiCalls, call: ApiCall, profile: Profile, until: float | None, is_fallback: bool
    ) -> None:
        self._calls, self._call, self._profile, self._until = calls, call, profile, until
        self._answers_as = profile.name if is_fallback else call.profile  # the profile may be a URL
        named = call.model if not is_fallback or call.model in profile.models else ""
        self._model = named or profile.models[0]
        self._retries = profile.max_retries if call.max_retries is None else call.max_retries
        self._timeout_s = call.timeout_s or profile.timeout_s
        self._tokens = estimate_tokens(call)
        self._budget = None if call.budget is None else round(call.budget * 1e9)
        self._tries = self._failures = self._limited = 0
        self._learnt: dict[Lesson, str] = {}

    async def run(self) -> ApiReply:
        """Raises ApiRefused, ApiUnavailable, ApiTimeout, BudgetSpent."""
        last: Failure | None = None
        try:
            async with asyncio.timeout(None if self._until is None else max(self._until - time.monotonic(), 0)):
                while True:
                    try:
                        reply = await self._try()
                        for lesson, message in self._learnt.items():  # the reduced request succeeded
                            await self._calls.learn(self._profile, self._model, lesson, message)
                        return reply
                    except TryFailed as error:
                        last = error.failure
                    except CircuitOpen as error:
                        if self._call.may_rest and not self._profile.fallback and error.wait_s > WAITED_S:
                            raise
                        is_unreachable = last is not None and last.kind == "connection"
                        last = Failure("connection" if is_unreachable else "server", str(error))
                        self._give_up_if_done(last, may_wait=not self._profile.fallback)
                        await asyncio.sleep(error.wait_s * (1 + 0.1 * random.random()))
                        continue
                    await self._after(last)
        except TimeoutError:
            waited = f"no answer within the deadline of {self._call.deadline_s:g} s"
            raise ApiTimeout(f"{waited}; last: {last.message}" if last else waited) from None

    async def _after(self, failure: Failure) -> None:
        """Back off before the next try; raise the error if no try is left."""
        if failure.lesson and failure.lesson not in self._learnt:  # once: a repeated complaint is final
            self._learnt[failure.lesson] = failure.message
            return
        if failure.kind == "limited":
            self._limited += 1
            if self._limited > MOST_LIMITED:
                raise ApiUnavailable(f"rate-limited {self._limited} times: {failure.message}")
            # With Retry-After every call waits at the limiter; without it only this call backs off.
            await asyncio.sleep(0 if failure.retry_after_s else backoff_s(min(self._limited, 3)))
            return
        self._give_up_if_done(failure)
        pause_s = backoff_s(self._failures)
        log.info(
            "profile %s: try %d failed, retry in %.1f s: %s", self._profile.name, self._tries, pause_s, failure.message
        )
        await asyncio.sleep(pause_s)

    def _give_up_if_done(self, failure: Failure, may_wait: bool = True) -> None:
        self._failures += 1
        if failure.is_retried and may_wait and self._failures <= self._retries:
            return
        raise _as_error(failure)

    async def _try(self) -> ApiReply:
        client = self._calls.client(self._profile)
        lessons = await self._calls.lessons(self._profile, self._model)
        body = body_of(self._call, self._model, lessons | self._learnt.keys())
        limiter, profile, call = self._calls.limiter, self._profile, self._call
        permit = await limiter.acquire(profile, call.job_id, call.priority, self._tokens, self._budget)
        while permit.is_stale:
            limiter.give_back(profile, permit)
            permit = await limiter.acquire(profile, call.job_id, call.priority, self._tokens, self._budget)
        self._tries += 1
        ended, used, began = CallResult(), None, time.monotonic()
        span = self._begin_span()
        try:
            answered = await client.ask(body, self._timeout_s)
            ended, used, reply = self._settled(answered)
            span.set_attributes(_as_attributes(reply))
            return replace(reply, left_out=left_out(call, body))
        except TryFailed as error:
            failure = error.failure
            is_limit = failure.kind in ("limited", "exhausted")
            ended = CallResult(
                ok=failure.kind in ("refused", "lesson"),
                limited=is_limit,
                failed=failure.is_of_the_api,
                retry_after_s=failure.retry_after_s,
                reason=failure.message,
            )
            used = 0 if failure.status else None  # a refused call used no tokens; a lost call may have
            if failure.status:
                span.set_attribute("http.response.status_code", failure.status)
            fail(span, failure.kind)
            raise
        except asyncio.CancelledError:
            fail(span, "cancelled")
            raise
        finally:
            span.end()
            limiter.release(profile, permit, replace(ended, seconds=time.monotonic() - began), used)

    def _begin_span(self) -> Span:
        """Start the span of one try, with the attribute names of OpenTelemetry for model calls, where defined."""
        call, profile = self._call, self._profile
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": self._model,
            "server.address": profile.host,
            "http.request.resend_count": self._tries - 1,
            "assay.profile": profile.name,
            "assay.job.id": call.job_id,
            "assay.item.index": call.item,
        }
        return self._calls.tracer.start_span(f"chat {self._model}", kind=SpanKind.CLIENT, attributes=attributes)

    def _settled(self, answered: Answered) -> tuple[CallResult, int, ApiReply]:
        reply, call = answered.reply, self._call
        cost = self._profile.cost_nano(reply.prompt_tokens, reply.completion_tokens)
        used = reply.prompt_tokens + reply.completion_tokens
        spent = CallUsage(reply.prompt_tokens, reply.completion_tokens, cost, call.job_id, call.token)
        ended = CallResult(ok=True, retry_after_s=answered.exhausted_for_s, usage=spent)
        told = replace(
            reply,
            model=reply.model or self._model,
            profile=self._answers_as,
            tries=self._tries,
            cost=None if cost is None else cost / 1e9,
        )
        return ended, used or self._tokens, told


def _as_attributes(reply: ApiReply) -> dict[str, str | int]:
    return {
        "http.response.status_code": 200,
        "gen_ai.response.model": reply.model,
        "gen_ai.usage.input_tokens": reply.prompt_tokens,
        "gen_ai.usage.output_tokens": reply.completion_tokens,
    }


def _as_error(failure: Failure) -> AssayError:
    if failure.kind in ("refused", "lesson"):
        return ApiRefused(failure.message)
    if failure.kind == "connection":
        return ApiUnreachable(failure.message)
    return ApiTimeout(failure.message) if failure.kind == "timeout" else ApiUnavailable(failure.message)
