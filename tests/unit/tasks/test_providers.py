"""Pure parts of outside API calls: classification of failures, retry delays, redaction, request and reply bodies."""

from collections.abc import Mapping

import pytest

from tasks.providers.call import ApiCall
from tasks.providers.chat import NotACompletion, body_of, estimate_tokens, read_reply
from tasks.providers.redaction import scrub
from tasks.providers.retry import backoff_s, classify, duration_s, exhausted_for_s, retry_after_s


@pytest.mark.parametrize(
    ("status", "code", "kind", "is_retried"),
    [
        (400, "", "refused", False),
        (401, "invalid_api_key", "refused", False),
        (403, "", "refused", False),
        (404, "model_not_found", "refused", False),
        (307, "", "refused", False),
        (422, "", "refused", False),
        (402, "", "exhausted", False),
        (429, "insufficient_quota", "exhausted", False),
        (429, "rate_limit_exceeded", "limited", True),
        (408, "", "server", True),
        (409, "", "server", True),
        (500, "", "server", True),
        (503, "", "server", True),
        (529, "overloaded", "server", True),
    ],
)
def test_the_type_of_a_failure_decides_whether_it_is_retried(
    status: int, code: str, kind: str, is_retried: bool
) -> None:
    failure = classify(status, code, "words of the API", {})
    assert (failure.kind, failure.is_retried, failure.message) == (kind, is_retried, "words of the API")


@pytest.mark.parametrize(
    "message",
    [
        "This response_format type is unavailable now",
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        "guided decoding backend is not available",
    ],
)
def test_a_refusal_of_the_schema_is_distinguished_from_other_refusals(message: str) -> None:
    with_schema = {"response_format": {}}
    assert classify(400, "", message, {}, with_schema).lesson == "no_schema"
    assert classify(400, "", message, {}, {}).kind == "refused"
    wrong_schema = "Invalid schema for response_format 'answer': 'score' is not of type 'object'"
    assert classify(400, "", wrong_schema, {}, with_schema).kind == "refused"
    assert classify(400, "", "maximum context length is 8192 tokens", {}, with_schema).kind == "refused"


def test_backoff_grows_with_full_jitter_up_to_a_bound() -> None:
    assert [backoff_s(tries, 0.999) for tries in (1, 2, 3, 10)] == pytest.approx([1, 2, 4, 30], rel=0.01)
    assert backoff_s(5, 0.0) == 0.0
    assert len({backoff_s(3) for _ in range(20)}) > 10


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "nan"}, 0),
        ({"retry-after": "90000"}, 3600),
        ({"retry-after": "1792567710"}, 0),
    ],
)
def test_retry_after_is_parsed_in_each_form(headers: Mapping[str, str], seconds: float) -> None:
    assert retry_after_s(headers) == seconds


def test_rate_limit_headers_without_remaining_requests_pause_calls() -> None:
    left = {"x-ratelimit-remaining-requests": "12", "x-ratelimit-reset-requests": "6m0s"}
    none_left = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m2.5s"}
    assert exhausted_for_s(left) == 0
    assert exhausted_for_s(left | none_left) == 62.5


@pytest.mark.parametrize(
    ("text", "seconds"), [("20ms", 0.02), ("6m0s", 360), ("0h2m3s", 123), ("2", 2), ("", 0), ("soon", 0), ("3m", 180)]
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-proj-abc***xyz0.",
        "header Authorization: Bearer abcdefgh",
        "header Authorization: bearer my-own-key-123",
        "my-own-key-123 is not valid",
        "see https://user:my-own-key-123@host/v1",
        "token hf_AbCdEfGhIj was revoked",
    ],
)
def test_keys_are_redacted_in_messages_of_an_api(text: str) -> None:
    shown = scrub(text, ["my-own-key-123"])
    assert "***" in shown
    for secret in ("sk-proj", "abcdefgh", "my-own-key", "hf_AbC"):
        assert secret not in shown


def test_messages_of_an_api_are_shortened_to_a_line() -> None:
    assert scrub("a\n  b") == "a b"
    assert len(scrub("word " * 1000)) < 600


def test_a_reservation_covers_the_prompt_and_the_longest_answer() -> None:
    messages = (
        {"role": "user", "content": "x" * 3500},
        {"role": "user", "content": [{"type": "text", "text": "y" * 350}]},
    )
    assert 1600 <= estimate_tokens(ApiCall("main", messages, sampling={"max_tokens": 500})) <= 1700
    assert estimate_tokens(ApiCall("main", messages)) > 2000


def test_a_request_body_has_every_field_of_the_call() -> None:
    call = ApiCall("main", ({"role": "user", "content": "hi"},), sampling={"temperature": 0}, schema={"type": "object"})
    assert body_of(call, "m", ["no_schema"]) == {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0,
    }  # fmt: skip
    assert body_of(call, "m")["response_format"]["type"] == "json_schema"


def test_a_reply_is_parsed_with_any_field_missing() -> None:
    reply = read_reply(b'{"choices": [{"message": {"content": null, "refusal": "no"}, "finish_reason": "stop"}]}')
    assert (reply.text, reply.refusal, reply.prompt_tokens, reply.logprobs) == ("", "no", 0, ())


@pytest.mark.parametrize(
    "content", [b"<html>502</html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{}]}', b"\xff"]
)
def test_a_reply_without_a_completion_is_refused(content: bytes) -> None:
    with pytest.raises(NotACompletion):
        read_reply(content)
