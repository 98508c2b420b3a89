"""Calls of outside APIs, with a real Redis, real connections, and an API that misbehaves."""

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis import Redis

from config import keys
from config.profiles import Profile, Profiles
from config.settings import Settings
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.counters import Totals
from tasks.errors import ApiRefused, ApiTimeout, ApiUnavailable, ApiUnreachable, BudgetSpent
from tasks.inference.rows import PREFIXES
from tasks.providers.call import ASK, ApiCall, ApiReply
from tests.conftest import ROOT
from tests.support.chat_api import ChatApi, Fault
from tests.support.programs import PATIENCE_S, wait_until
from tests.support.redis_server import RedisServer
from workers.main import describe
from workers.providers.api_calls import ApiCalls
from workers.worker.runtime import ProcessRuntime

T = TypeVar("T")
SECRET = "sk-very-secret-0123456789"
NOWHERE = "http://127.0.0.1:1/v1"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.providers.retry.BASE_S", 0.05)


@pytest.fixture
def chat_api() -> Iterator[ChatApi]:
    with ChatApi() as api:
        yield api


def profile(api: ChatApi | None = None, **fields: Any) -> Profile:
    given: dict[str, Any] = {"name": "main", "base_url": api.url if api else NOWHERE, "models": ("judge-1", "judge-2")}
    return Profile.model_validate(given | {"timeout_s": PATIENCE_S} | fields)


def call(text: str = "2+3?", **fields: Any) -> ApiCall:
    return ApiCall(**({"profile": "main", "messages": ({"role": "user", "content": text},), "job_id": "j1"} | fields))


def run(
    redis_url: str,
    *profiles: Profile,
    do: Callable[[ApiCalls], Awaitable[T]],
    environment: dict[str, str] | None = None,
) -> T:
    async def with_calls() -> T:
        async with ApiCalls(Profiles(*profiles), redis_url, environment or {}) as calls:
            return await do(calls)

    return asyncio.run(with_calls())


def test_a_call_is_answered_and_its_usage_and_cost_are_recorded(
    redis_url: str, state: Redis, chat_api: ChatApi
) -> None:
    reply = run(redis_url, profile(chat_api, price_in=1.0, price_out=2.0), do=lambda ask: ask(call(token="team")))
    assert (reply.text, reply.finish_reason, reply.model, reply.profile) == ("re: 2+3?", "stop", "judge-1", "main")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.tries) == (10, 5, 1)
    assert reply.cost == pytest.approx(20e-6)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    used = {"calls": "1", "prompt_tokens": "10", "completion_tokens": "5", "cost:USD": "20000"}
    for key in (keys.api_usage("main", day), keys.job_usage("j1"), keys.token_usage("team", day)):
        assert state.hgetall(key) == used
        assert state.ttl(key) > 0
    assert state.hgetall(keys.api_holders("main")) == {}


def test_every_field_of_a_call_reaches_the_api(redis_url: str, chat_api: ChatApi) -> None:
    asked = call(model="judge-2", sampling={"temperature": 0, "max_tokens": 9}, top_logprobs=5)
    run(redis_url, profile(chat_api, headers={"X-Team": "evals"}), do=lambda ask: ask(asked))
    (seen,) = chat_api.seen
    assert seen.body == {
        "model": "judge-2", "messages": [{"role": "user", "content": "2+3?"}], "temperature": 0, "max_tokens": 9,
        "logprobs": True, "top_logprobs": 5,
    }  # fmt: skip
    assert seen.headers["x-team"] == "evals"


def test_connections_are_reused_across_jobs(redis_url: str, chat_api: ChatApi) -> None:
    async def twenty(ask: ApiCalls) -> None:
        for number in range(20):
            await ask(call(job_id=f"j{number}"))

    run(redis_url, profile(chat_api), do=twenty)
    assert len(chat_api.connections) == 1


def test_a_call_that_begins_without_redis_is_made_when_redis_is_back(chat_api: ChatApi, tmp_path: Path) -> None:
    async def around_a_restart(ask: ApiCalls) -> ApiReply:
        server.stop()
        begun = asyncio.create_task(ask(call()))
        await asyncio.sleep(0.3)
        assert not begun.done(), begun
        server.start()
        return await begun

    with RedisServer(tmp_path) as server:
        reply = run(server.url, profile(chat_api), do=around_a_restart)
    assert (reply.text, reply.tries) == ("re: 2+3?", 1)


def test_1000_items_at_128_in_flight_survive_429s_and_500s_within_the_rate(redis_url: str, chat_api: ChatApi) -> None:
    chat_api.delay_s, chat_api.gather = 0.5, 128
    chat_api.fail_at_random(s429=0.2, s500=0.05)
    fast = profile(chat_api, rpm=18_000, window_s=1, concurrency=128, concurrency_start=128, concurrency_min=128)

    async def all_items(ask: ApiCalls) -> list[ApiReply]:
        return await asyncio.gather(*(ask(call(str(number))) for number in range(1000)))

    replies = run(redis_url, fast, do=all_items)
    assert [reply.text for reply in replies] == [f"re: {number}" for number in range(1000)]
    assert chat_api.peak == 128
    assert chat_api.most_in_any(1.0) <= 300 * 1.05


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refused_request_fails_at_once_with_the_apis_message(redis_url: str, chat_api: ChatApi, status: int) -> None:
    chat_api.fault = lambda _: Fault(status, {"error": {"message": "no such thing here", "type": "x"}})
    with pytest.raises(ApiRefused, match=f"{status}: no such thing here"):
        run(redis_url, profile(chat_api), do=lambda ask: ask(call()))
    assert len(chat_api.seen) == 1


def test_a_dead_api_fails_the_call_with_a_reason_within_the_deadline(redis_url: str) -> None:
    with pytest.raises(ApiTimeout, match=r"within the deadline of 5 s; last: .*127\.0\.0\.1:1 cannot be reached"):
        run(redis_url, profile(max_retries=100), do=lambda ask: ask(call(deadline_s=5.0)))


def test_an_unreachable_api_is_distinguished_from_a_failing_api(redis_url: str, chat_api: ChatApi) -> None:
    with pytest.raises(ApiUnreachable, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
        run(redis_url, profile(max_retries=0), do=lambda ask: ask(call()))
    assert PREFIXES[caught.value.name] == "Network/Timeout Error"
    chat_api.fault = lambda _: Fault(500)
    with pytest.raises(ApiUnavailable) as caught:
        run(redis_url, profile(chat_api, max_retries=0), do=lambda ask: ask(call()))
    assert PREFIXES[caught.value.name] == "API Error"


def test_retries_are_used_up_by_errors_and_not_by_429s(redis_url: str, chat_api: ChatApi) -> None:
    statuses = iter([429, 429, 429, 500, 429, 503])
    chat_api.fault = lambda _: Fault(status) if (status := next(statuses, 0)) else None
    reply = run(redis_url, profile(chat_api, max_retries=2), do=lambda ask: ask(call()))
    assert reply.tries == 7
    chat_api.fault = lambda _: Fault(500)
    with pytest.raises(ApiUnavailable, match="500: fault 500"):
        run(redis_url, profile(chat_api, max_retries=1), do=lambda ask: ask(call()))
    assert len(chat_api.seen) == 9


@pytest.mark.parametrize("fault", [Fault(hang_s=3600), Fault(drip_s=0.1)])
def test_a_hung_connection_fails_only_its_item(redis_url: str, chat_api: ChatApi, fault: Fault) -> None:
    """Neither fault ends without the call's timeout before the test itself times out."""
    chat_api.fault = lambda body: fault if body["messages"][0]["content"] == "7" else None

    async def ten(ask: ApiCalls) -> list[Any]:
        limits = {7: 0.5}
        calls = (
            ask(call(str(number), timeout_s=limits.get(number, PATIENCE_S), max_retries=0)) for number in range(10)
        )
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = run(redis_url, profile(chat_api), do=ten)
    assert [type(outcome) for outcome in outcomes] == [ApiReply] * 7 + [ApiTimeout] + [ApiReply] * 2
    assert "did not answer within 0.5 s" in str(outcomes[7])


def test_retry_after_pauses_every_process(redis_url: str, state: Redis, chat_api: ChatApi) -> None:
    faults = iter([Fault(429, headers={"Retry-After": "1"})])
    chat_api.fault = lambda _: next(faults, None)

    async def one_then_others(ask: ApiCalls) -> None:
        first = asyncio.create_task(ask(call()))
        while not state.hexists(keys.api_pace("main"), "paused_until"):
            await asyncio.sleep(0.01)
        async with ApiCalls(Profiles(profile(chat_api)), redis_url) as elsewhere:  # like a second process
            await asyncio.gather(first, *(elsewhere(call(job_id="j2")) for _ in range(5)))

    run(redis_url, profile(chat_api), do=one_then_others)
    first, *others = chat_api.times
    assert min(others) - first >= 0.95


def test_no_call_is_made_while_the_apis_headers_report_no_remaining_requests(redis_url: str, chat_api: ChatApi) -> None:
    chat_api.headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "800ms"}

    async def two(ask: ApiCalls) -> None:
        await ask(call())
        await ask(call())

    run(redis_url, profile(chat_api), do=two)
    assert chat_api.times[1] - chat_api.times[0] >= 0.75


def test_cancelled_calls_close_their_connections_and_free_their_places(
    redis_url: str, state: Redis, chat_api: ChatApi
) -> None:
    """Without cancellation they would end with an answer or a timeout, which takes longer than this test may."""
    chat_api.delay_s = 3600
    wide = profile(chat_api, concurrency=50, concurrency_start=50, timeout_s=3600)

    async def cancel(ask: ApiCalls) -> None:
        tasks = [asyncio.create_task(ask(call(str(number)))) for number in range(200)]
        while chat_api.in_flight < 50:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while chat_api.in_flight or state.exists(keys.api_holders("main")):
            await asyncio.sleep(0.01)

    run(redis_url, wide, do=cancel)
    assert (chat_api.left, len(chat_api.seen)) == (50, 50)


def test_an_open_circuit_falls_back_and_the_reply_names_the_fallback(redis_url: str, chat_api: ChatApi) -> None:
    dead = profile(fallback="spare", circuit_failures=3, max_retries=0)
    spare = profile(chat_api, name="spare", models=("small",))

    async def five(ask: ApiCalls) -> list[ApiReply]:
        return [await ask(call()) for _ in range(5)]

    replies = run(redis_url, dead, spare, do=five)
    assert {(reply.profile, reply.model, reply.text) for reply in replies} == {("spare", "small", "re: 2+3?")}
    assert {seen.body["model"] for seen in chat_api.seen} == {"small"}


def test_an_open_circuit_makes_no_call_and_a_half_open_circuit_a_single_call(
    redis_url: str, state: Redis, chat_api: ChatApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.providers.retry.BASE_S", 0.5)
    monkeypatch.setattr("random.random", lambda: 0.9)  # so that no call is retried before its failure is reported
    chat_api.delay_s, chat_api.gather = 0.2, 3  # so that the three calls are in flight before the first fails
    chat_api.fault = lambda _: Fault(500)
    fragile = profile(chat_api, circuit_failures=3, circuit_open_s=1, max_retries=5)

    async def recover(ask: ApiCalls) -> None:
        tasks = [asyncio.create_task(ask(call(str(number)))) for number in range(3)]
        while state.hget(keys.api_circuit("main"), "state") != "open":
            await asyncio.sleep(0.01)
        chat_api.fault = lambda _: None
        await asyncio.gather(*tasks, *(ask(call(str(number))) for number in range(17)))

    run(redis_url, fragile, do=recover)
    times = chat_api.times
    assert times[3] - times[2] >= 1, "no call is made while the circuit is open, for a second"
    assert times[4] - times[3] >= 0.2, "half open: a single call is in flight until it is answered"
    assert chat_api.answered == 20


def test_a_model_without_schema_support_is_called_without_a_schema_from_then_on(
    redis_url: str, chat_api: ChatApi
) -> None:
    refusal = {"error": {"message": "This response_format type is unavailable now"}}
    chat_api.fault = lambda body: Fault(400, refusal) if "response_format" in body else None
    asked = call(schema={"type": "object"})
    first = run(redis_url, profile(chat_api), do=lambda ask: ask(asked))
    again = run(redis_url, profile(chat_api), do=lambda ask: ask(asked))
    assert (first.used_schema, again.used_schema) == (False, False)
    assert ["response_format" in seen.body for seen in chat_api.seen] == [True, False, False]


def test_max_tokens_is_renamed_for_a_model_that_requires_another_name(redis_url: str, chat_api: ChatApi) -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    chat_api.fault = lambda body: Fault(400, {"error": {"message": said}}) if "max_tokens" in body else None

    async def twice(ask: ApiCalls) -> None:
        await ask(call(sampling={"max_tokens": 9}))
        await ask(call(sampling={"max_tokens": 9}))

    run(redis_url, profile(chat_api), do=twice)
    assert [seen.body.get("max_completion_tokens") for seen in chat_api.seen] == [None, 9, 9]


def test_unsupported_parameters_are_left_out_and_the_reply_names_them(redis_url: str, chat_api: ChatApi) -> None:
    said = {
        "temperature": "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is.",
        "logprobs": "Unsupported parameter: 'logprobs' is not supported with this model.",
    }
    chat_api.fault = lambda body: next(
        (Fault(400, {"error": {"message": text}}) for name, text in said.items() if name in body), None
    )
    asked = call(sampling={"temperature": 0, "seed": 1}, top_logprobs=5)

    async def twice(ask: ApiCalls) -> list[ApiReply]:
        return [await ask(asked), await ask(asked)]

    replies = run(redis_url, profile(chat_api), do=twice)
    assert [reply.left_out for reply in replies] == [("temperature",)] * 2
    assert [sorted({*seen.body} & {"temperature", "logprobs", "seed"}) for seen in chat_api.seen] == [
        ["logprobs", "seed", "temperature"], ["logprobs", "seed"], ["seed"], ["seed"],
    ]  # fmt: skip
    chat_api.fault = lambda _: Fault(400, {"error": {"message": "Invalid 'temperature': a number from 0 to 2."}})
    with pytest.raises(ApiRefused, match="Invalid 'temperature'"):
        run(redis_url, profile(chat_api), do=lambda ask: ask(call(model="judge-2", sampling={"temperature": 3})))


def test_a_refusal_that_no_change_of_parameters_resolves_is_raised(redis_url: str, chat_api: ChatApi) -> None:
    chat_api.fault = lambda _: Fault(400, {"error": {"message": "the json_schema of your tools is wrong"}})
    with pytest.raises(ApiRefused, match="400: the json_schema of your tools is wrong"):
        run(redis_url, profile(chat_api), do=lambda ask: ask(call(schema={"type": "object"})))
    chat_api.fault = lambda _: None
    reply = run(redis_url, profile(chat_api), do=lambda ask: ask(call(schema={"type": "object"})))
    assert reply.used_schema, "a change that did not help is not remembered"


def test_a_schema_is_used_if_the_model_supports_it(redis_url: str, chat_api: ChatApi) -> None:
    async def many(ask: ApiCalls) -> list[ApiReply]:
        return await asyncio.gather(*(ask(call(schema={"type": "object"})) for _ in range(200)))

    assert all(reply.used_schema for reply in run(redis_url, profile(chat_api), do=many))
    assert chat_api.seen[0].body["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_a_budget_stops_the_job_and_no_other(redis_url: str, chat_api: ChatApi) -> None:
    dear = profile(chat_api, price_in=100_000, price_out=0)  # the price of a call is 1

    async def spend(ask: ApiCalls) -> list[Any]:
        outcomes: list[Any] = []
        for _ in range(5):
            outcomes += await asyncio.gather(ask(call(budget=3.0)), return_exceptions=True)
        return [*outcomes, await ask(call(job_id="j2", budget=3.0))]

    *mine, other = run(redis_url, dear, do=spend)
    assert [type(outcome) for outcome in mine] == [ApiReply] * 3 + [BudgetSpent] * 2
    assert isinstance(other, ApiReply)


def test_no_secret_is_in_any_log_error_or_key(
    redis_url: str, state: Redis, chat_api: ChatApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-another")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Other: secret-of-another")
    caplog.set_level(logging.DEBUG)
    keyed = profile(chat_api, api_key_env="THE_KEY", headers={"X-Also": "header-secret-9"}, max_retries=1)
    chat_api.fault = lambda body: Fault(
        500 if body["messages"][0]["content"] == "fail" else 401,
        {"error": {"message": f"Incorrect API key provided: {SECRET}, sent as Bearer {SECRET}, header-secret-9"}},
    )

    async def both(ask: ApiCalls) -> list[Any]:
        return await asyncio.gather(ask(call()), ask(call("fail")), return_exceptions=True)

    errors = run(redis_url, keyed, do=both, environment={"THE_KEY": SECRET})
    assert [type(error) for error in errors] == [ApiRefused, ApiUnavailable]
    assert chat_api.seen[0].headers["authorization"] == f"Bearer {SECRET}"
    assert not {"openai-organization", "x-other"} & set(chat_api.seen[0].headers)
    stored = [json.dumps(state.hgetall(key)) for key in state.keys("assay:api:*") if state.type(key) == "hash"]
    chain = [repr(error.__cause__) + repr(error.__context__) for error in errors]
    shown = "\n".join([caplog.text, repr(keyed), *map(repr, errors), *chain, *stored])
    assert "Incorrect API key provided" in shown
    assert SECRET not in shown
    assert "header-secret-9" not in shown


def test_a_profile_without_a_key_sends_none(redis_url: str, chat_api: ChatApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    run(redis_url, profile(chat_api), do=lambda ask: ask(call()))
    assert "authorization" not in chat_api.seen[0].headers


def test_a_missing_key_is_named(redis_url: str, chat_api: ChatApi) -> None:
    with pytest.raises(ApiRefused, match="profile main: the variable THE_KEY is not set"):
        run(redis_url, profile(chat_api, api_key_env="THE_KEY"), do=lambda ask: ask(call()))
    assert not chat_api.seen


def test_an_answer_without_a_completion_is_an_error_of_the_api(redis_url: str, chat_api: ChatApi) -> None:
    chat_api.reply = {"choices": []}
    with pytest.raises(ApiUnavailable, match="not a chat completion"):
        run(redis_url, profile(chat_api, max_retries=0), do=lambda ask: ask(call()))
    chat_api.reply = {"choices": None, "error": {"code": 400, "message": "context too long"}}
    with pytest.raises(ApiRefused, match="400: context too long"):
        run(redis_url, profile(chat_api, max_retries=0), do=lambda ask: ask(call()))


def test_an_unknown_profile_is_refused_with_the_known_profiles(redis_url: str) -> None:
    with pytest.raises(ApiRefused, match="Unknown profile 'other': use main"):
        run(redis_url, profile(), do=lambda ask: ask(call(profile="other")))


def test_two_processes_share_a_limit_and_the_places_of_a_killed_process_are_released(
    redis_url: str, chat_api: ChatApi
) -> None:
    chat_api.delay_s = 0.2
    shared = profile(chat_api, rpm=6000, window_s=1, concurrency=20, concurrency_start=20, concurrency_min=20)

    def start() -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "tests.integration.api_caller", redis_url, shared.model_dump_json(), "150"]
        return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    with start() as one, start() as other:
        assert [each.communicate(timeout=PATIENCE_S)[0].strip() for each in (one, other)] == ["150", "150"]
    assert chat_api.peak <= 20
    assert chat_api.most_in_any(1.0) <= 105

    with start() as killed:
        wait_until(lambda: chat_api.in_flight == 20, "the process uses every place")
        killed.kill()
    asked = run(redis_url, shared, do=lambda ask: ask(call(deadline_s=PATIENCE_S)))
    assert asked.text == "re: 2+3?", "the places of the killed process expire"


def test_tasks_of_a_worker_share_one_loop_and_its_connections(settings: Settings, chat_api: ChatApi) -> None:
    core = create_core(settings, create_celery(settings))
    runtime = ProcessRuntime(describe(settings, "api", 0, "launcher"), core, Profiles(profile(chat_api)))

    async def ask_one() -> ApiReply:
        return await runtime.get(ASK)(call())

    with ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(lambda _: runtime.run_async(ask_one(), PATIENCE_S), range(40)))
    assert len(replies) == len(chat_api.seen) == 40
    assert len(chat_api.connections) <= 4
    runtime.close()


def test_many_items_of_a_dead_api_fail_with_the_reason_and_few_connections_are_tried(
    redis_url: str, state: Redis
) -> None:
    dead = profile(circuit_failures=5, circuit_open_s=0.2, max_retries=2)

    async def all_items(ask: ApiCalls) -> list[Any]:
        return await asyncio.gather(*(ask(call(str(number))) for number in range(200)), return_exceptions=True)

    outcomes = run(redis_url, dead, do=all_items)
    assert {type(outcome) for outcome in outcomes} <= {ApiUnavailable, ApiUnreachable}, (
        "each call is rejected by the open circuit, or fails to connect"
    )
    assert all("127.0.0.1:1 cannot be reached" in str(outcome) for outcome in outcomes)
    tried = dict(Totals.read(state).of("api"))["main", "failed"]
    assert tried < 100, "of 600 tries without a circuit breaker: three for each item"
    assert state.hget(keys.api_circuit("main"), "state") in ("open", "half_open")
