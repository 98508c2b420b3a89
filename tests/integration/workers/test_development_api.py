"""The development API at the wire, through the real `openai` client."""

import asyncio
import json
import math
import random
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.conftest import ROOT
from tests.support.judge_api import JudgeApi
from tests.support.programs import PATIENCE_S, Program, Programs, wait_until
from workers.development_api import NOTICE
from workers.development_api.control import running
from workers.development_api.knobs import Knobs, draw_fate, draw_latency_s
from workers.processes.supervisor import EXIT_MISCONFIGURED

Run = Callable[..., Program]

SCORE = "Judge the response on a scale from 1 to 5. End with a line `Score: N`."
VERDICT_SCHEMA = {
    "type": "object",
    "properties": {"rationale": {"type": "string"}, "score": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["rationale", "score"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": VERDICT_SCHEMA}}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeApi]:
    with Programs(ROOT, tmp_path_factory.mktemp("judge")) as programs, JudgeApi(programs.start) as api:
        yield api


@pytest.fixture(autouse=True)
def _as_new(api: JudgeApi) -> Iterator[None]:
    """Reset the knobs and the counts after each test."""
    before = api.knobs()
    api.reset()
    yield
    api.set(**before)


@pytest.fixture
def judge(api: JudgeApi) -> Iterator[OpenAI]:
    with OpenAI(base_url=api.url, api_key="any", max_retries=0, timeout=PATIENCE_S) as client:
        yield client


@asynccontextmanager
async def many(api: JudgeApi, timeout_s: float = PATIENCE_S) -> AsyncIterator[AsyncOpenAI]:
    client = AsyncOpenAI(base_url=api.url, api_key="any", max_retries=0, timeout=timeout_s)
    async with client:
        yield client


def about(response: str, asked: str = SCORE, **more: str) -> list[Any]:
    texts = "\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in (("response", response), *more.items()))
    return [{"role": "system", "content": asked}, {"role": "user", "content": texts}]


def ask(client: OpenAI, response: str = "so 5", **more: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "development", "messages": about(response), "temperature": 0} | more
    )


def say(client: OpenAI, *arguments: Any, **more: Any) -> str:
    content = ask(client, *arguments, **more).choices[0].message.content
    assert isinstance(content, str)
    return content


# --- replies ----------------------------------------------------------------------------------------------------------


def test_a_reply_has_openais_shape_and_declares_that_it_is_simulated(judge: OpenAI) -> None:
    raw = judge.chat.completions.with_raw_response.create(model="development", messages=about("so 5"), temperature=0)
    assert raw.headers["x-assay-development"] == NOTICE
    reply = raw.parse()
    assert (reply.object, reply.model, reply.system_fingerprint) == (
        "chat.completion",
        "development",
        "assay-development",
    )
    (choice,) = reply.choices
    assert choice.finish_reason == "stop"
    assert choice.message.role == "assistant"
    assert choice.message.content is not None
    assert choice.message.content.startswith(NOTICE)
    assert int(choice.message.content.rpartition("Score: ")[2]) in range(1, 6)
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert [model.id for model in judge.models.list()] == ["development", "development-large"]


def test_equal_requests_have_equal_replies_at_temperature_0_only(judge: OpenAI) -> None:
    assert say(judge) == say(judge)
    assert len({say(judge, temperature=1.5, seed=7) for _ in range(5)}) == 1
    assert len({say(judge, temperature=1.5, seed=seed) for seed in range(20)}) > 1
    assert len({say(judge, temperature=1.5) for _ in range(20)}) > 1
    samples = ask(judge, temperature=1.5, n=20, seed=7).choices
    assert len({choice.message.content for choice in samples}) > 1


def test_different_responses_get_different_scores_over_the_whole_scale(judge: OpenAI) -> None:
    scores = {say(judge, f"response {number}").rpartition(" ")[2] for number in range(60)}
    assert scores == {"1", "2", "3", "4", "5"}


def test_a_response_with_the_reference_gets_the_highest_score_and_others_the_lowest(judge: OpenAI) -> None:
    for reference, score in (("So   5", "5"), ("6", "1")):
        assert say(judge, messages=about("well, so 5.", reference=reference)).endswith(f"Score: {score}")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("End with `Verdict: PASS` or `FAIL`.", ("Verdict: PASS", "Verdict: FAIL")),
        ("Is it correct? Answer yes or no, as `Decision: yes`.", ("Decision: yes", "Decision: no")),
        ("Rate it from 0 to 100. `Rating: [[50]]`", tuple(f"Rating: [[{score}]]" for score in range(101))),
        (
            'Reply with JSON: {"reason": "...", "verdict": "pass" or "fail"}',
            ('"verdict": "pass"}', '"verdict": "fail"}'),
        ),
    ],
)
def test_the_verdict_has_the_form_that_the_prompt_requests(judge: OpenAI, asked: str, words: tuple[str]) -> None:
    for number in range(10):
        assert say(judge, messages=about(f"response {number}", asked)).endswith(words)


def test_the_better_of_two_responses_wins_in_either_order(api: JudgeApi, judge: OpenAI) -> None:
    asked = "Which is better? `Winner: A`, `Winner: B` or `Winner: tie`."

    def winner(one: str, other: str) -> str:
        pair = f"<response_a>\n{one}\n</response_a>\n<response_b>\n{other}\n</response_b>"
        messages = [{"role": "system", "content": asked}, {"role": "user", "content": pair}]
        return say(judge, messages=messages).rpartition("Winner: ")[2]

    swapped = {"A": "B", "B": "A", "tie": "tie"}
    found = [(winner(f"a{number}", f"b{number}"), winner(f"b{number}", f"a{number}")) for number in range(12)]
    assert all(there == swapped[back] for there, back in found)
    assert {there for there, _ in found} == {"A", "B"}
    assert winner("same", "same") == "tie"
    api.set(share_first=1)
    assert {winner(f"a{number}", f"b{number}") for number in range(12)} == {"A"}, "a judge that prefers the first"


def test_a_schema_is_filled_in(judge: OpenAI) -> None:
    answer = json.loads(say(judge, response_format=SCHEMA))
    jsonschema.validate(answer, VERDICT_SCHEMA)
    assert answer["rationale"].startswith(NOTICE)
    assert f"Score: {answer['score']}" in say(judge)


def test_any_schema_is_filled_in(judge: OpenAI) -> None:
    schema = {
        "type": "object",
        "$defs": {"grade": {"type": "number", "minimum": 0, "maximum": 1}},
        "properties": {
            "helpful": {"$ref": "#/$defs/grade"},
            "harmless": {"allOf": [{"$ref": "#/$defs/grade"}]},
            "ok": {"type": "boolean"},
            "binary": {"type": "integer", "minimum": 0, "maximum": 1},
            "level": {"enum": [1, 2, 3]},
            "verdict": {"enum": ["fail", "pass"]},
            "mood": {"type": ["string", "null"], "maxLength": 5},
            "maybe": {"anyOf": [{"type": "null"}, {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6}]},
            "kind": {"const": "judgement"},
            "notes": {
                "type": "array",
                "minItems": 2,
                "items": {"type": "object", "properties": {"a": {"type": "null"}}},
            },
            "tree": {"$ref": "#"},
        },
    }
    shaped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for number in range(10):
        answer = json.loads(say(judge, f"response {number}", response_format=shaped))
        jsonschema.validate(answer, schema)
        assert answer.keys() == schema["properties"].keys()


def test_a_json_object_is_returned_on_request(judge: OpenAI) -> None:
    assert json.loads(say(judge, response_format={"type": "json_object"})).keys() == {"rationale", "score"}


def test_logprobs_are_a_distribution_around_the_score(judge: OpenAI) -> None:
    (choice,) = ask(judge, logprobs=True, top_logprobs=5, response_format=SCHEMA).choices
    content = choice.logprobs.content
    assert "".join(token.token for token in content) == choice.message.content
    score = str(json.loads(choice.message.content)["score"])
    (token,) = [token for token in content if token.token == score and len(token.top_logprobs) == 5]
    odds = {other.token: math.exp(other.logprob) for other in token.top_logprobs}
    assert odds.keys() == {"1", "2", "3", "4", "5"}
    assert max(odds, key=lambda word: odds[word]) == score
    assert sum(odds.values()) == pytest.approx(1)
    assert token.bytes == list(score.encode())


def test_a_stream_has_the_same_text_as_the_reply(judge: OpenAI) -> None:
    events = list(ask(judge, stream=True, stream_options={"include_usage": True}))
    said = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert said == say(judge)
    assert events[-2].choices[0].finish_reason == "stop"
    assert events[-1].usage.completion_tokens > 10


def test_max_tokens_shortens_the_reply_to_its_verdict_and_then_cuts_it(judge: OpenAI) -> None:
    assert say(judge, max_tokens=1) in ("1", "2", "3", "4", "5")
    (choice,) = ask(judge, max_completion_tokens=30).choices
    assert choice.finish_reason == "length"
    assert "Score" not in choice.message.content
    assert "Score" not in say(judge, stop=["Score"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": []}, "Missing required parameter: 'messages'."),
        ({"model": ""}, "you must provide a model parameter"),
        ({"response_format": {"type": "xml"}}, "Supported values are: 'json_object', 'json_schema', and 'text'"),
        ({"top_logprobs": 5}, "The 'logprobs' parameter must be set to true"),
        ({"n": 0}, "Invalid 'n'"),
        ({"stop": 5}, "Invalid type for 'stop'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"anyOf": [True]}}}},
            "Invalid schema for response_format",
        ),
    ],
)
def test_an_invalid_request_is_refused_in_openais_error_format(judge: OpenAI, body: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(judge, **body)
    assert said in str(caught.value)
    assert caught.value.type == "invalid_request_error"


def test_any_path_with_the_ending_of_a_chat_url_is_served(api: JudgeApi) -> None:
    root = api.url.removesuffix("/v1")
    for prefix in ("", "/v1", "/api/paas/v4"):
        with OpenAI(base_url=root + prefix, api_key="any", max_retries=0) as client:
            assert "Score" in say(client)
    for method, path, status in (("POST", "/v1/embeddings", 404), ("GET", "/v1/chat/completions", 405)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(root + path, method=method), timeout=PATIENCE_S)
        assert caught.value.code == status
        caught.value.close()


# --- knobs ------------------------------------------------------------------------------------------------------------


def test_a_429_has_a_retry_after(api: JudgeApi, judge: OpenAI) -> None:
    api.set(share_429=1, retry_after_s=1.5)
    with pytest.raises(openai.RateLimitError) as caught:
        ask(judge)
    assert caught.value.response.headers["retry-after"] == "2"
    assert caught.value.response.headers["retry-after-ms"] == "1500"
    api.set(retry_after_s=0)
    with pytest.raises(openai.RateLimitError) as caught:
        ask(judge)
    assert "retry-after" not in caught.value.response.headers
    assert api.counts()["accepted"] == 0


def test_server_errors(api: JudgeApi, judge: OpenAI) -> None:
    api.set(share_500=1)
    statuses = set()
    for _ in range(20):
        with pytest.raises(openai.InternalServerError) as caught:
            ask(judge)
        statuses.add(caught.value.status_code)
    assert statuses == {500, 502, 503}


def test_dropped_connections(api: JudgeApi, judge: OpenAI) -> None:
    api.set(share_drop=1)
    for _ in range(6):
        with pytest.raises((openai.APIConnectionError, openai.APIResponseValidationError)):
            ask(judge)
    assert api.counts()["by_status"] == {"dropped": 6}


def test_a_garbage_reply_raises_an_error_in_the_client(api: JudgeApi) -> None:
    api.set(share_garbage=1)
    kinds = set()
    for _ in range(20):
        body = json.dumps({"model": "development", "messages": about("x")}).encode()
        with urllib.request.urlopen(f"{api.url}/chat/completions", body, timeout=PATIENCE_S) as reply:
            assert reply.status == 200
            text = reply.read().decode()
            kinds.add(text[:6])
            assert "choices" not in text or not text.endswith("}")
    assert kinds == {"<html>", '{"id":', '{"ok":'}


@pytest.mark.parametrize(("fate", "reason"), [("length", "length"), ("filter", "content_filter")])
def test_cut_replies_have_no_verdict(api: JudgeApi, judge: OpenAI, fate: str, reason: str) -> None:
    api.set(**{f"share_{fate}": 1})
    (choice,) = ask(judge).choices
    assert choice.finish_reason == reason
    assert "Score" not in choice.message.content


def test_refusals_and_replies_without_a_verdict(api: JudgeApi, judge: OpenAI) -> None:
    api.set(share_refusal=1)
    (choice,) = ask(judge).choices
    assert (choice.message.content, bool(choice.message.refusal), choice.finish_reason) == (None, True, "stop")
    api.set(share_refusal=0, share_unparsable=1)
    assert "Score" not in say(judge)


def test_thinking_precedes_the_reply_and_contains_a_different_verdict(api: JudgeApi, judge: OpenAI) -> None:
    plain = say(judge)
    api.set(thinking=True)
    thought, _, rest = say(judge).partition("</think>\n")
    assert thought.startswith("<think>")
    assert "Score: 1" in thought
    assert rest == plain


def test_schema_support(api: JudgeApi, judge: OpenAI) -> None:
    as_object = {"type": "json_object"}
    api.set(schema="no")
    for form in (SCHEMA, as_object):
        with pytest.raises(openai.BadRequestError, match=r"'response_format' of type 'json_\w+' is not supported"):
            ask(judge, response_format=form)
    api.set(schema="object")
    with pytest.raises(openai.BadRequestError):
        ask(judge, response_format=SCHEMA)
    assert json.loads(say(judge, response_format=as_object))
    api.set(schema="ignored")
    assert say(judge, response_format=SCHEMA) == say(judge)


def test_logprobs_support(api: JudgeApi, judge: OpenAI) -> None:
    api.set(logprobs="no")
    with pytest.raises(openai.BadRequestError, match="'logprobs' is not supported"):
        ask(judge, logprobs=True)
    api.set(logprobs="ignored")
    assert ask(judge, logprobs=True).choices[0].logprobs is None


def test_a_key_is_required(api: JudgeApi, judge: OpenAI) -> None:
    api.set(key="s3cret")
    with pytest.raises(openai.AuthenticationError):
        ask(judge)
    assert say(judge.with_options(api_key="s3cret"))
    assert "s3cret" not in str(api.knobs())


def test_the_model_name_and_headers_set_the_knobs_of_a_call(api: JudgeApi, judge: OpenAI) -> None:
    assert ask(judge, model="mine?share_refusal=1").choices[0].message.refusal
    assert ask(judge, extra_headers={"X-Development-Share-Refusal": "1"}).choices[0].message.refusal
    assert ask(judge, model="mine").model == "mine"
    assert api.counts()["by_model"] == {"mine": 2, "development": 1}
    with pytest.raises(openai.BadRequestError, match="Unknown knob 'share_luck'"):
        ask(judge, model="mine?share_luck=1")
    with pytest.raises(openai.BadRequestError, match="'rpm' applies to the whole server"):
        ask(judge, model="mine?rpm=1")


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"latency": 5}, "Unknown knob 'latency'; choose from latency_ms, "),
        ({"latency_ms": "fast"}, "latency_ms: string should match pattern"),
        ({"latency_ms": "9-3"}, "the first number must be the smaller one"),
        ({"share_429": 1.5}, "share_429: input should be less than or equal to 1 (it is 1.5)."),
        ({"share_429": 0.6, "share_500": 0.6}, "add up to more than 1"),
        ({"schema": "maybe"}, "schema: input should be 'yes', 'object', 'no' or 'ignored'"),
    ],
)
def test_an_invalid_knob_is_refused_with_a_sentence(api: JudgeApi, knobs: dict[str, Any], said: str) -> None:
    before = api.knobs()
    with pytest.raises(ValueError) as caught:
        api.set(**knobs)
    assert said in str(caught.value)
    assert api.knobs() == before


def test_the_same_seed_gives_the_same_sequence_of_faults(api: JudgeApi, judge: OpenAI) -> None:
    def fates() -> str:
        api.set(share_refusal=0.5, seed=3)
        return "".join("r" if ask(judge).choices[0].message.refusal else "." for _ in range(30))

    first = fates()
    assert first == fates()
    assert 5 < first.count("r") < 25


# --- limits and counts ------------------------------------------------------------------------------------------------


async def statuses(api: JudgeApi, number: int, **more: Any) -> list[int]:
    """Return the HTTP status of each of this number of concurrent calls."""
    async with many(api) as client:

        async def one(index: int) -> int:
            try:
                await client.chat.completions.create(model="development", messages=about(f"response {index}"), **more)
            except openai.APIStatusError as error:
                return error.status_code
            return 200

        return list(await asyncio.gather(*(one(index) for index in range(number))))


async def statuses_of_held(api: JudgeApi, number: int) -> list[int]:
    """Return the statuses of calls of which the accepted ones are held until every call has arrived."""
    with api.held():
        asked = asyncio.create_task(statuses(api, number))
        await asyncio.to_thread(wait_until, lambda: api.calls == number, "all calls have come")
        await asyncio.to_thread(wait_until, lambda: settled(api) == number, "every call is accepted or refused")
    return await asked


def settled(api: JudgeApi) -> int:
    counts = api.counts()
    accepted: int = counts["accepted"]
    return accepted + sum(counts["by_status"].values())


def test_counts_are_exact_under_200_calls_at_once(api: JudgeApi) -> None:
    api.set(latency_ms="20-200", share_500=0.2, share_429=0.1)
    seen = asyncio.run(statuses_of_held(api, 200))
    counts = api.counts(3600, 1e-9)
    assert counts["calls"] == counts["by_model"]["development"] == counts["distinct_bodies"] == 200
    assert counts["by_status"] == {str(status): seen.count(status) for status in set(seen)}
    assert counts["accepted"] == 200 - seen.count(429)
    assert counts["in_flight"] == 0
    assert counts["accepted"] <= counts["peak_in_flight"] <= 200
    assert counts["peaks"][0] == {"window_s": 3600, "calls": 200, "accepted": counts["accepted"]}
    assert counts["peaks"][1]["calls"] < 5
    times = api.counts(times=50)["times_s"]
    assert len(times) == 50
    assert times == sorted(times)
    api.reset()
    assert api.counts()["calls"] == 0


def test_a_body_that_is_too_long_is_refused_and_counted(api: JudgeApi, judge: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        ask(judge, "x" * 17 * 2**20)
    assert caught.value.status_code == 413
    assert api.counts()["by_status"] == {"413": 1}


def test_concurrent_replies_have_different_ids(api: JudgeApi) -> None:
    api.set(latency_ms=100)

    async def names() -> set[str]:
        async with many(api) as client:
            calls = [client.chat.completions.create(model="development", messages=about("x")) for _ in range(20)]
            return {reply.id for reply in await asyncio.gather(*calls)}

    assert len(asyncio.run(names())) == 20


def test_no_window_has_more_calls_than_the_limit(api: JudgeApi, judge: OpenAI) -> None:
    api.set(rpm=1200, window_s=0.5)  # ten calls in any half second
    seen = asyncio.run(statuses(api, 60))
    seen += asyncio.run(statuses(api, 60))
    assert api.peak(0.5) <= 10
    assert api.counts()["accepted"] == seen.count(200) >= 10
    api.set(rpm=1, window_s=600)  # ten calls in ten minutes
    seen = asyncio.run(statuses(api, 60))
    assert seen.count(200) <= 10
    assert seen.count(429) >= 50
    api.set(window_s=60, rpm=1)
    say_or_nothing(judge)
    with pytest.raises(openai.RateLimitError, match="Rate limit reached for requests per min") as caught:
        ask(judge)
    headers = caught.value.response.headers
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"].endswith("ms")
    assert 0 < int(headers["retry-after-ms"]) <= 60_000


def test_tokens_are_limited(api: JudgeApi, judge: OpenAI) -> None:
    used = ask(judge).usage.total_tokens
    api.set(tpm=int(2.5 * used))
    for _ in range(2):
        ask(judge)
    with pytest.raises(openai.RateLimitError, match="tokens per min"):
        ask(judge)


def test_calls_in_flight_are_limited(api: JudgeApi) -> None:
    api.set(concurrency=3)
    seen = asyncio.run(statuses_of_held(api, 30))
    assert (seen.count(200), seen.count(429)) == (3, 27)
    assert api.counts()["accepted"] == 3


def test_hanging_calls_block_no_other_call_and_end_with_their_client(api: JudgeApi, judge: OpenAI) -> None:
    async def hang() -> None:
        async with many(api) as client:
            await client.chat.completions.create(model="development?share_hang=1", messages=about("x"))

    async def every_call() -> None:
        hanging = [asyncio.create_task(hang()) for _ in range(50)]
        await asyncio.to_thread(wait_until, lambda: api.calls >= 50, "all are there")
        assert await asyncio.to_thread(say, judge)
        assert not any(task.done() for task in hanging)
        assert api.counts()["in_flight"] == 50, "they are in flight while they hang"
        for task in hanging:
            task.cancel()
        ended = await asyncio.gather(*hanging, return_exceptions=True)
        assert {type(each) for each in ended} == {asyncio.CancelledError}

    asyncio.run(every_call())
    api.set(concurrency=1)
    wait_until(lambda: "Score" in say_or_nothing(judge), "calls of disconnected clients are no longer in flight")
    wait_until(lambda: api.counts()["by_status"]["hung"] == 50, "all are counted")
    assert api.counts()["in_flight"] == 0


def say_or_nothing(client: OpenAI) -> str:
    try:
        return say(client)
    except openai.RateLimitError:
        return ""


def test_held_calls_are_answered_afterwards(api: JudgeApi, judge: OpenAI) -> None:
    async def both() -> list[int]:
        with api.held():
            waiting = asyncio.create_task(statuses(api, 20))
            await asyncio.to_thread(wait_until, lambda: api.counts()["accepted"] == 20, "all were accepted")
            assert api.counts()["in_flight"] == 20
            assert not waiting.done()
        return await waiting

    assert asyncio.run(both()) == [200] * 20
    assert say(judge)


def test_a_disconnected_client_is_counted_as_such(api: JudgeApi) -> None:
    api.set(latency_ms=3_600_000)

    async def leave() -> None:
        async with many(api) as client:
            call = asyncio.create_task(client.chat.completions.create(model="development", messages=about("x")))
            await asyncio.to_thread(wait_until, lambda: api.counts()["in_flight"] == 1, "the call has come")
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    asyncio.run(leave())
    wait_until(lambda: api.counts()["by_status"] == {"left": 1}, "it was seen to leave")
    assert api.counts()["in_flight"] == 0


def test_long_tailed_latency(api: JudgeApi) -> None:
    """Each call takes at least its drawn latency; most drawn latencies are short and a few are long."""
    chance, knobs = random.Random(1), Knobs(latency_ms="10-800")
    drawn = sorted((draw_fate(knobs, chance), draw_latency_s(knobs, chance))[1] for _ in range(60))
    assert drawn[0] >= 0.01
    assert drawn[30] < 0.2 < drawn[-1]
    api.set(latency_ms="10-800", seed=1)

    async def seconds() -> list[float]:
        async with many(api) as client:

            async def one() -> float:
                raw = await client.chat.completions.with_raw_response.create(model="development", messages=about("x"))
                return int(raw.headers["openai-processing-ms"]) / 1000

            return sorted(await asyncio.gather(*(one() for _ in range(60))))

    assert all(taken >= least - 0.002 for taken, least in zip(asyncio.run(seconds()), drawn, strict=True))


# --- the process ------------------------------------------------------------------------------------------------------


def test_it_stops_at_once_with_calls_in_flight(run: Run) -> None:
    with JudgeApi(run, share_hang=1) as api:
        port = int(api.url.split(":")[2].removesuffix("/v1"))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            body = json.dumps({"model": "development", "messages": about("x")}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            wait_until(lambda: api.counts()["by_fate"] == {"hang": 1}, "it hangs")
            assert api.program.stop() == 0
    assert "Traceback" not in api.program.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0: the development API serves loopback only.\n"),
        (["--share-429", "2"], "share_429: input should be less than or equal to 1 (it is '2').\n"),
    ],
)
def test_it_refuses_to_start_with_one_clear_line(run: Run, arguments: list[str], said: str) -> None:
    program = run("python", "-m", "workers.development_api", *arguments)
    assert program.wait() == EXIT_MISCONFIGURED
    assert program.output == said


def test_the_check_command_of_the_development_api(run: Run, api: JudgeApi) -> None:
    port = api.url.split(":")[2].removesuffix("/v1")
    assert run("python", "-m", "workers.development_api", "--check", "--port", port).wait() == 0
    nobody = run("python", "-m", "workers.development_api", "--check", "--port", "1")
    assert nobody.wait() == 1
    assert "does not answer on port 1" in nobody.output


def test_benchmarks_start_their_own_development_api() -> None:
    with running(latency_ms=1) as api, OpenAI(base_url=api.url, api_key="any", max_retries=0) as client:
        assert say(client)
        assert api.calls == 1
