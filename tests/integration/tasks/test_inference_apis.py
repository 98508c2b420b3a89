"""Inference rows answered by an API, or by a backend of an installed package, through the job core."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import keys
from tasks.inference.backends import installed
from tasks.jobs.model import JobRequest
from tests.support.chat_api import ChatApi, Fault
from tests.support.fleet import Fleet, Hand
from tests.support.programs import PATIENCE_S, wait_until

PROFILES = """
[profiles.openai]
base_url = "{url}"
models = ["m"]
fallback = "spare"
max_retries = 0

[profiles.spare]
base_url = "{spare}"
models = ["small"]

[profiles.togetherai]
base_url = "{url}"
models = ["together-m"]
"""


@pytest.fixture
def apis(fleet: Fleet, tmp_path: Path) -> Iterator[tuple[ChatApi, ChatApi]]:
    with ChatApi() as main, ChatApi() as spare:
        path = tmp_path / "profiles.toml"
        path.write_text(PROFILES.format(url=main.url, spare=spare.url))
        fleet.settings = fleet.settings.model_copy(update={"profiles_file": path})
        yield main, spare


def rows(number: int) -> list[dict[str, Any]]:
    return [{"id": str(n), "query": f"What is {n}?", "context": f"{n} is a number."} for n in range(number)]


def submit(hand: Hand, items: list[dict[str, Any]], **options: Any) -> str:
    hand.core.dispatcher.forget_fleet()
    return str(hand.core.submitter.submit(JobRequest(kind="inference", items=items, **options)))


def test_an_api_answers_rows_with_the_sampling_of_the_job(fleet: Fleet, apis: tuple[ChatApi, ChatApi]) -> None:
    hand = fleet.hire("api")
    sampling = {"temperature": 0.5, "top_p": 0.9, "max_new_tokens": 64, "stop": ["\n\n"], "seed": 3, "n": 2}
    job = submit(hand, rows(5), spec={"backend": "openai", "system": "Be brief.", "sampling": sampling})
    assert fleet.finish(job, hand).ok == 5
    value = fleet.rows(job)[0]["value"]
    assert len(value["answers"]) == 2
    assert value["tokens"] == {"prompt": 10, "completion": 10}
    bodies = [each.body for each in apis[0].seen]
    assert len(bodies) == 10
    assert {body["seed"] for body in bodies} == {3, 4}
    assert bodies[0] | {"temperature": 0.5, "top_p": 0.9, "max_tokens": 64, "stop": ["\n\n"]} == bodies[0]
    assert [message["role"] for message in bodies[0]["messages"]] == ["system", "user"]
    again = submit(hand, rows(5), spec={"backend": "openai", "system": "Be brief.", "sampling": sampling})
    assert fleet.job(again).cached == 5, "answered before the submit returned"


def test_a_profile_with_the_name_of_the_backend_is_the_default(fleet: Fleet, apis: tuple[ChatApi, ChatApi]) -> None:
    hand = fleet.hire("api")
    job = submit(hand, rows(1), spec={"backend": "togetherai"})
    fleet.finish(job, hand)
    assert [each.body["model"] for each in apis[0].seen] == ["together-m"]


def test_an_answer_of_a_fallback_is_cached_under_the_fallbacks_key(fleet: Fleet, apis: tuple[ChatApi, ChatApi]) -> None:
    main, spare = apis
    hand = fleet.hire("api")
    main.fault = lambda _: Fault(500)
    job = submit(hand, rows(2), spec={"backend": "openai"})
    assert fleet.finish(job, hand).ok == 2
    main.fault = lambda _: None
    again = submit(hand, rows(2), spec={"backend": "openai"})
    assert fleet.finish(again, hand).cached == 0
    direct = submit(hand, rows(2), spec={"backend": "openai", "profile": "spare"})
    assert fleet.finish(direct, hand).cached == 2
    assert len(spare.seen) == 2


def test_rows_with_the_same_key_share_a_call_and_failures_pass_through(
    fleet: Fleet, apis: tuple[ChatApi, ChatApi]
) -> None:
    hand = fleet.hire("api")
    items = [row | {"dedup_key": "same"} for row in rows(4)]
    items.append({"id": "bad", "success": False, "error": "no document"})
    job = submit(hand, items, spec={"backend": "openai"})
    ended = fleet.finish(job, hand)
    assert (ended.ok, ended.reasons) == (4, {"context_failed": 1})
    assert len(apis[0].seen) == 1
    assert "What is 0?" in json.dumps(apis[0].seen[0].body), "the first row decides"


def test_a_call_that_hangs_delays_only_its_own_chunk(fleet: Fleet, apis: tuple[ChatApi, ChatApi]) -> None:
    hand = fleet.hire("api")
    apis[0].fault = lambda body: Fault(hang_s=600) if "hang" in json.dumps(body) else None
    held = submit(hand, [{"query": "hang"}], spec={"backend": "openai"})
    other = submit(hand, rows(5), spec={"backend": "openai"})
    working = threading.Thread(target=hand.work)
    working.start()
    try:
        wait_until(lambda: fleet.job(other).ok, "the chunk taken along with it is answered")
        wait_until(lambda: fleet.core.state.scard(keys.running("api")) == 1, "and is over")
        assert fleet.job(held).is_active
        assert apis[0].in_flight == 1
    finally:
        fleet.core.cancel(held)
        working.join(PATIENCE_S)
    assert fleet.core.state.scard(keys.running("api")) == 0


class Parrot:
    """A minimal custom backend."""

    pool = "cpu"

    def generate_answer(self, query: str, context: str, retrieval_method: str) -> str:
        if "3" in query:
            raise RuntimeError("I do not like threes")
        return f"{query} {context} {retrieval_method}"


def test_a_backend_of_an_installed_package_answers(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "class_of", lambda _: Parrot)
    installed.instance.cache_clear()  # the instance is per process, and this process also runs other tests
    hand = fleet.hire("cpu")
    items = [row | {"retrieval_method": "exact_api_match"} for row in rows(5)]
    job = submit(hand, items, spec={"backend": "parrot"})
    ended = fleet.finish(job, hand)
    assert (ended.ok, ended.reasons) == (4, {"backend_failed": 1})
    told = fleet.rows(job)
    assert told[0]["value"]["answers"] == ["What is 0? 0 is a number. exact_api_match"]
    assert told[3]["value"]["exception_type"] == "RuntimeError"


def test_a_backend_with_a_version_answers_equal_rows_once_until_it_changes(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Careful:
        pool = "cpu"
        version = "1"

        def generate_answer(self, query: str, context: str, retrieval_method: str) -> str:  # noqa: ARG002  # not needed
            asked.append(query)
            return f"{query} {self.version}"

    monkeypatch.setattr(installed, "class_of", lambda _: Careful)
    installed.instance.cache_clear()
    hand = fleet.hire("cpu")
    items = [row | {"dedup_key": "same"} for row in rows(3)] + rows(1)
    for version, cached in (("1", 0), ("1", 4), ("2", 0)):
        monkeypatch.setattr(Careful, "version", version)
        job = submit(hand, items, spec={"backend": "careful"})
        ended = fleet.finish(job, hand)
        assert (ended.ok, cached in (0, ended.cached)) == (4, True)
        assert {row["value"]["answers"][0] for row in fleet.rows(job)} == {f"What is 0? {version}"}
    assert asked == ["What is 0?"] * 2
