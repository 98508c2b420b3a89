"""Usage of outside APIs over HTTP: calls, tokens and cost by job, profile and bearer token."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api import Api, is_problem
from tests.support.chat_api import ChatApi
from tests.support.fleet import Fleet
from web.http.auth.tokens import Token, write

PROFILES = """
[profiles.main]
base_url = "{url}"
models = ["m"]
price_in = 1000.0
price_out = 2000.0
"""
VERDICT = {"index": 0, "message": {"role": "assistant", "content": "Score: 7"}, "finish_reason": "stop"}


@pytest.fixture
def chat_api() -> Iterator[ChatApi]:
    with ChatApi() as api:
        api.reply = {"choices": [VERDICT]}
        yield api


def judging(number: int) -> dict[str, object]:
    items = [{"prompt": "How many?", "response": f"It is {n}."} for n in range(number)]
    return {"kind": "judge", "items": items, "spec": {"profile": "main"}}


def test_usage_is_recorded_by_job_profile_and_token(fleet: Fleet, chat_api: ChatApi, tmp_path: Path) -> None:
    profiles, tokens = tmp_path / "profiles.toml", tmp_path / "tokens.jsonl"
    profiles.write_text(PROFILES.format(url=chat_api.url))
    names = ("alice", "bob")
    write(tokens, tuple(Token(name=name, sha256=hashlib.sha256(name.encode()).hexdigest()) for name in names))
    fleet.settings = fleet.settings.model_copy(update={"profiles_file": profiles, "tokens_file": tokens})
    api, hand = Api(fleet), fleet.hire("api")
    jobs = {}
    for name, number in (("alice", 3), ("bob", 5)):  # two of bob's five items are not in the cache
        headers = {"Authorization": f"Bearer {name}"}
        jobs[name] = api.client.post("/v1/jobs", json=judging(number), headers=headers).json["id"]
        fleet.finish(jobs[name], hand)
    fleet.close()  # the process writes its remaining usage
    headers = {"Authorization": "Bearer alice"}
    view = api.client.get(f"/v1/jobs/{jobs['alice']}", headers=headers).json
    each = {"prompt_tokens": 10, "completion_tokens": 5, "cost": 10 * 0.001 + 5 * 0.002}

    def used(calls: int) -> dict[str, object]:
        return {
            "calls": calls,
            "prompt_tokens": calls * each["prompt_tokens"],
            "completion_tokens": calls * each["completion_tokens"],
            "cost": {"USD": pytest.approx(calls * each["cost"])},
        }

    assert view["usage"] == used(3)
    day = api.client.get("/v1/usage", headers=headers).json
    assert day["profiles"] == {"main": used(5)}
    assert day["tokens"] == {"alice": used(3), "bob": used(2)}
    before = api.client.get("/v1/usage?day=2020-01-01", headers=headers).json
    assert before["tokens"]["bob"]["calls"] == 0
    assert is_problem(api.client.get("/v1/usage?day=yesterday", headers=headers), 422, "day")


def test_only_a_job_that_calls_an_api_has_usage_and_the_development_api_a_warning(api: Api) -> None:
    scored = api.submit({"x": 1}).json
    assert (scored["usage"], scored["notes"]) == (None, [])
    reply = api.client.post("/v1/jobs", json=judging(1) | {"spec": {"profile": "development"}})
    assert reply.json["notes"] == ["judging uses the development API: scores mean nothing"]
