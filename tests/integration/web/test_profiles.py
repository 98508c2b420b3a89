"""API profiles over HTTP: limits and usage are shown, secrets are hidden, and limits can be changed at runtime."""

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from config import keys
from config.profiles import Profiles, read_profiles
from config.settings import SettingsError
from tasks.providers.call import ApiCall
from tests.integration.api import Api, is_problem
from tests.support.chat_api import ChatApi
from tests.support.fleet import Fleet
from tests.support.programs import PATIENCE_S, wait_until
from workers.providers.api_calls import ApiCalls

FILE = """
[profiles.main]
base_url = "{url}"
api_key_env = "THE_KEY"
models = ["judge-1"]
rpm = 600
concurrency = 50
price_in = 1.0
price_out = 1.0
fallback = "spare"
headers = {{ "X-Also" = "header-secret" }}

[profiles.spare]
base_url = "http://spare.example/v1"
models = ["small"]
"""


@pytest.fixture
def chat_api() -> Iterator[ChatApi]:
    with ChatApi() as api:
        yield api


@pytest.fixture
def profiles_file(tmp_path: Path, chat_api: ChatApi) -> Path:
    path = tmp_path / "profiles.toml"
    path.write_text(FILE.format(url=chat_api.url))
    return path


@pytest.fixture
def with_profiles(fleet: Fleet, profiles_file: Path) -> Api:
    fleet.settings = fleet.settings.model_copy(update={"profiles_file": profiles_file})
    return Api(fleet)


def ask(profiles: Profiles, redis_url: str, *calls: ApiCall) -> None:
    async def all_calls() -> None:
        async with ApiCalls(profiles, redis_url, {"THE_KEY": "sk-secret-key"}) as apis:
            await asyncio.gather(*map(apis, calls))

    asyncio.run(all_calls())


def call(**fields: object) -> ApiCall:
    return ApiCall("main", ({"role": "user", "content": "2+3?"},), **fields)  # type: ignore[arg-type]


def test_a_profile_shows_its_limits_and_usage_and_no_secret(
    with_profiles: Api, profiles_file: Path, redis_url: str
) -> None:
    ask(read_profiles(profiles_file), redis_url, call(), call())
    reply = with_profiles.client.get("/v1/profiles")
    main, spare = reply.json["profiles"]
    assert main["limits"] == {"rpm": 600, "tpm": None, "concurrency": 50}
    assert re.fullmatch(r"127\.0\.0\.1:\d+", main["host"])
    assert (main["models"], main["fallback"], spare["fallback"]) == (["judge-1"], "spare", None)
    assert (main["in_flight"], main["waiting"], main["ceiling"], main["circuit"]["state"]) == (0, 0, 20, "closed")
    assert main["usage_today"] == {
        "calls": 2, "prompt_tokens": 20, "completion_tokens": 10, "cost": {"USD": pytest.approx(30e-6)},
    }  # fmt: skip
    assert with_profiles.client.get("/v1/profiles/spare").json == spare
    for hidden in ("secret", "THE_KEY", "http://"):
        assert hidden not in reply.text


def test_limits_are_changed_and_reset(with_profiles: Api) -> None:
    client = with_profiles.client
    changed = client.patch("/v1/profiles/main", json={"rpm": 60, "concurrency": 5}).json
    assert changed["limits"] == {"rpm": 60, "tpm": None, "concurrency": 5}
    assert (changed["changed"], changed["ceiling"]) == (["concurrency", "rpm"], 5)
    reset = client.patch("/v1/profiles/main", json={"rpm": None}).json
    assert reset["limits"] == {"rpm": 600, "tpm": None, "concurrency": 5}


def test_a_changed_limit_applies_to_waiting_calls(
    with_profiles: Api, profiles_file: Path, redis_url: str, chat_api: ChatApi
) -> None:
    """Five calls are admitted at once, then one per minute, unless the limit is raised."""
    with_profiles.client.patch("/v1/profiles/main", json={"rpm": 5})
    waiting = threading.Thread(target=ask, args=(read_profiles(profiles_file), redis_url, *[call()] * 20))
    waiting.start()
    wait_until(lambda: chat_api.answered == 5, "five are answered")
    # A process reports its waiting calls when it asks the limiter for permits, at least twice a second.
    wait_until(lambda: with_profiles.client.get("/v1/profiles/main").json["waiting"] == 15, "the others wait")
    with_profiles.client.patch("/v1/profiles/main", json={"rpm": 60_000})
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert chat_api.answered == 20


def test_an_invalid_change_of_limits_is_a_problem(with_profiles: Api) -> None:
    client = with_profiles.client
    assert is_problem(client.patch("/v1/profiles/other", json={"rpm": 1}), 404)
    assert is_problem(client.get("/v1/profiles/other"), 404)
    assert is_problem(client.patch("/v1/profiles/main", json={"rpm": 0}), 422, "rpm")
    assert is_problem(client.patch("/v1/profiles/main", json={"base_url": "http://evil"}), 422, "base_url")
    assert is_problem(client.patch("/v1/profiles/main", data="{", content_type="application/json"), 400)
    assert is_problem(client.patch("/v1/profiles/main", data="rpm=1"), 415)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"profile": "http://evil.example/v1"}, "spec.profile"),
        ({"profile": [{"profile": "http://evil.example/v1"}]}, "spec.profile"),
        ({"profile": "main", "base_url": "http://evil.example/v1"}, "spec.base_url"),
        ({"profile": "main", "model": "http://evil.example/v1"}, "spec.model"),
        ({"profile": "main", "sampling": {"base_url": "http://evil.example/v1"}}, "spec.sampling"),
    ],
)
def test_a_job_names_a_profile_and_never_a_url(with_profiles: Api, spec: dict[str, Any], field: str) -> None:
    assert is_problem(with_profiles.submit({"response": "5"}, kind="judge", spec=spec), 422, field)


def test_an_open_circuit_shows_its_reason(with_profiles: Api, state: Redis) -> None:
    now = float(state.time()[0])
    circuit = {"state": "open", "until": now + 60, "times": 1, "reason": "503: overloaded"}
    state.hset(keys.api_circuit("main"), mapping=circuit)
    shown = with_profiles.client.get("/v1/profiles/main").json["circuit"]
    assert (shown["state"], shown["reason"]) == ("open", "503: overloaded")
    assert 50 < shown["wait_s"] <= 60


def test_without_a_file_the_development_api_is_the_only_profile(api: Api) -> None:
    assert [each["name"] for each in api.client.get("/v1/profiles").json["profiles"]] == ["development"]


def test_the_web_process_does_not_start_with_an_invalid_file(fleet: Fleet, profiles_file: Path) -> None:
    profiles_file.write_text(profiles_file.read_text().replace('"spare"', '"nobody"', 1))
    fleet.settings = fleet.settings.model_copy(update={"profiles_file": profiles_file})
    with pytest.raises(SettingsError, match="profile main: its fallback nobody is not a profile"):
        Api(fleet)


def test_a_job_may_name_a_url_only_if_its_host_is_permitted(fleet: Fleet, chat_api: ChatApi) -> None:
    chat_api.reply = {"choices": [{"index": 0, "message": {"content": "Score: 7"}, "finish_reason": "stop"}]}
    items = [{"response": "It is 5."}]
    spec = {"profile": f"{chat_api.url}/chat/completions", "model": "mine", "use_schema": "never"}
    job = {"kind": "judge", "items": items, "spec": spec}
    assert is_problem(Api(fleet).client.post("/v1/jobs", json=job), 422, "spec.profile")
    assert not chat_api.seen
    fleet.settings = fleet.settings.model_copy(update={"api_hosts": "127.0.0.1"})
    hand = fleet.hire("api")
    accepted = Api(fleet).client.post("/v1/jobs", json=job).json["id"]
    assert fleet.finish(accepted, hand).ok == 1
    (seen,) = chat_api.seen
    assert seen.body["model"] == "mine"
    again = Api(fleet).client.post("/v1/jobs", json=job).json
    assert (again["state"], again["cached"]) == ("done", 1)
    assert "authorization" not in seen.headers or "secret" not in seen.headers["authorization"]
