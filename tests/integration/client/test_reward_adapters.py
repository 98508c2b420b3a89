"""The trainer adapters and their shared core, against a fake server on the network."""

import asyncio
import importlib.util
import inspect
import json
import multiprocessing
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from assay import ConnectionFailed, InvalidRequest, Retry
from assay.rewards import Reward, RewardClient, verl
from assay.rewards.swift import SwiftReward, register_in
from assay.rewards.trl import AsyncTrlReward, TrlReward

from tests.support.programs import PATIENCE_S, wait_until
from tests.support.wire_server import WireServer, failed, succeeded

SCORERS = ["numeric_match"]


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer() as server:
        server.outcome = right_or_wrong
        yield server


@pytest.fixture
def client(server: WireServer) -> Iterator[RewardClient]:
    client = RewardClient(SCORERS, url=server.url, window_s=1.0)  # long enough to batch concurrent calls
    yield client
    client.close()


def right_or_wrong(item: dict[str, Any]) -> dict[str, Any]:
    if item["response"] == "broken":
        return failed("scorer_failed")
    text = item["response"] if isinstance(item["response"], str) else item["response"][-1]["content"]
    score = float(text == item.get("reference"))
    return succeeded(score, numeric_match=score)


def item(response: str, reference: str = "5", **more: Any) -> dict[str, Any]:
    return {"response": response, "reference": reference} | more


# The shared core


def test_concurrent_calls_become_few_jobs(server: WireServer, client: RewardClient) -> None:
    got: dict[int, list[float | None]] = {}

    def call(number: int) -> None:
        rows = client.score([item(str(number), "3"), item("broken")])
        got[number] = [row.score for row in rows]
        assert [row.index for row in rows] == [0, 1]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    server.held = True
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(len(job.items) for job in server.jobs.values()) == 16, "every call is in flight")
    server.release()
    for thread in threads:
        thread.join()
    assert got == {number: [float(number == 3), None] for number in range(8)}
    assert len(server.jobs) <= 3, "eight calls within milliseconds become at most three jobs"


def test_calls_of_an_event_loop_become_a_single_job(server: WireServer, client: RewardClient) -> None:
    async def many() -> list[Any]:
        return await asyncio.gather(*(client.score_async([item(str(n), "3")]) for n in range(20)))

    for _ in range(2):  # a new event loop each time, as with asyncio.run in a trainer
        rows = [row for (row,) in asyncio.run(many())]
        assert [row.score for row in rows] == [float(n == 3) for n in range(20)]
    assert len(server.jobs) == 2


def test_groups_of_different_calls_stay_separate(server: WireServer, client: RewardClient) -> None:
    first = client.submit([item("5", group_id="g"), item("6", group_id="g")])
    second = client.submit([item("7", group_id="g")])
    assert [row.group_id for row in [*first.result(), *second.result()]] == ["g", "g", "g"]
    (job,) = server.jobs.values()
    assert [each["group_id"] for each in job.items] == ["0:g", "0:g", "1:g"]


def test_an_invalid_call_does_not_fail_other_calls_of_the_batch(server: WireServer, client: RewardClient) -> None:
    server.fault("POST /v1/jobs", "422")
    calls = [client.submit([item("5")]), client.submit([item("6")])]
    assert [call.result()[0].score for call in calls] == [1.0, 0.0]
    server.fault("POST /v1/jobs", "422", times=9)
    with pytest.raises(InvalidRequest):
        client.score([item("5")])


def test_items_without_an_outcome_at_the_timeout_are_invalid_and_the_job_is_cancelled(server: WireServer) -> None:
    server.held, server.settled_at_once = True, 1
    client = RewardClient(SCORERS, url=server.url, timeout_s=1.0)
    rows = client.score([item("5"), item("5"), item("5")])
    assert [row.valid for row in rows] == [True, False, False]
    assert rows[1].error is not None
    assert rows[1].error.type == "timed_out"
    wait_until(lambda: server.jobs["job-0"].view["state"] == "cancelled", "the job is cancelled")
    client.close()


def test_a_named_reward_is_looked_up_once(server: WireServer) -> None:
    spec = {"scorers": [{"name": "numeric_match"}], "combine": "sum"}
    server.lists["rewards"] = [{"name": "math", "fill": -1.0, "spec": spec}]
    client = RewardClient("math", url=server.url)
    assert client.reward().fill == -1.0
    client.score([item("5")])
    client.score([item("5")])
    assert [json.loads(seen.body)["spec"] for seen in server.requests("POST /v1/jobs")] == [spec, spec]
    assert len(server.requests("GET /v1/rewards")) == 1
    unknown = RewardClient("code", url=server.url)
    with pytest.raises(ValueError, match="no reward 'code'; it has: math"):
        unknown.score([item("5")])
    for each in (client, unknown):
        each.close()


def test_an_unreachable_server_raises_an_error() -> None:
    client = RewardClient(SCORERS, url="http://127.0.0.1:9", retry=Retry(give_up_after_s=0.2))
    with pytest.raises(ConnectionFailed):
        client.score([item("5")])
    client.close()


def test_a_call_cancelled_early_is_not_sent(server: WireServer, client: RewardClient) -> None:
    left = client.submit([item("5")])
    stayed = client.submit([item("6")])
    assert left.cancel()
    assert stayed.result()[0].score == 0.0
    assert [len(job.items) for job in server.jobs.values()] == [1]


def test_forked_processes_and_pickled_copies_have_their_own_connections(client: RewardClient) -> None:
    assert client.score([item("5")])[0].score == 1.0
    with warnings.catch_warnings():
        # Python warns about a fork in a process with threads, which is exactly the case under test.
        warnings.simplefilter("ignore", DeprecationWarning)
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=_score_in_child, args=(client, answers))
        child.start()
    assert answers.get() == [1.0, 0.0]
    child.join(PATIENCE_S)
    copy = pickle.loads(pickle.dumps(client))
    assert copy.score([item("6")])[0].score == 0.0
    assert client.score([item("5")])[0].score == 1.0
    copy.close()


def _score_in_child(client: RewardClient, answers: Any) -> None:
    answers.put([row.score for row in client.score([item("5"), item("6")])])


# Your own training loop


def test_reward_is_a_plain_callable(server: WireServer) -> None:
    reward = Reward(SCORERS, url=server.url)
    assert reward(["5", "6", "broken"], references=["5", "5", "5"], prompts=["2+3?"] * 3) == [1.0, 0.0, None]
    assert asyncio.run(reward.call_async(["5"], ["5"])) == [1.0]
    assert reward.rows(["broken"])[0].error is not None
    assert reward([]) == []
    assert [each["group_id"] for each in server.jobs["job-0"].items] == ["0:0"] * 3
    reward.client.close()


# TRL

CHATS = [[{"role": "assistant", "content": text}] for text in ("5", "6")]
ASKED = [[{"role": "user", "content": "2+3?"}]] * 2


def test_trl_gets_a_number_or_none_for_every_completion(server: WireServer) -> None:
    reward = TrlReward(SCORERS, url=server.url)
    rewards = reward(
        prompts=["a", "a", "b"],
        completions=["5", "broken", "6"],
        completion_ids=[[1, 2], [3], [4, 5, 6]],
        answer=["5", "5", "5"],
        trainer_state=object(),
    )
    assert rewards == [1.0, None, 0.0]
    items = server.jobs["job-0"].items
    assert [each["response_tokens"] for each in items] == [2, 1, 3]
    assert [each["group_id"] for each in items] == ["0:0", "0:0", "0:1"]
    assert reward(prompts=ASKED, completions=CHATS, solution=["5", "5"]) == [1.0, 0.0]
    reward.client.close()


def test_parts_and_errors_are_logged_to_trl(server: WireServer) -> None:
    tables: dict[str, list[Any]] = {}
    metrics: dict[str, float] = {}
    reward = TrlReward(SCORERS, url=server.url, name="math", reference_column="truth")
    reward(
        prompts=["a", "a"],
        completions=["5", "broken"],
        truth=["5", "5"],
        log_extra=tables.__setitem__,
        log_metric=metrics.__setitem__,
    )
    assert tables == {"math/numeric_match": [1.0, None], "math/error": ["", "scorer_failed"]}
    assert metrics == {"math/valid": 0.5}
    assert reward.__name__ == "math"
    reward.client.close()


def test_trl_detects_the_asyncio_reward_and_both_forms_can_be_pickled(server: WireServer) -> None:
    awaited = pickle.loads(pickle.dumps(AsyncTrlReward(SCORERS, url=server.url)))
    assert inspect.iscoroutinefunction(awaited.__call__)
    assert asyncio.run(awaited(prompts=["a"], completions=["5"], answer=["5"])) == [1.0]
    called = pickle.loads(pickle.dumps(TrlReward(SCORERS, url=server.url, name="math")))
    assert not inspect.iscoroutinefunction(called.__call__)
    assert (called.__name__, called(prompts=["a"], completions=["5"], answer=["5"])) == ("math", [1.0])
    for each in (awaited, called):
        each.client.close()


# verl


@pytest.fixture
def verl_file() -> Any:
    """Load the module like verl: by its path, under a different name."""
    spec = importlib.util.spec_from_file_location("custom_module", verl.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for client in module._CLIENTS.values():
        client.close()


KEYS = {"score", "valid", "numeric_match"}


def test_verl_gets_the_same_keys_for_every_sample(
    server: WireServer, verl_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_URL", server.url)
    monkeypatch.setenv("ASSAY_REWARD", json.dumps(SCORERS))
    right = verl_file.compute_score("gsm8k", "5", "5", {"question": "2+3?"})
    broken = verl_file.compute_score(data_source="gsm8k", solution_str="broken", ground_truth="5", extra_info=None)
    assert right == {"score": 1.0, "valid": True, "numeric_match": 1.0}
    assert broken == {"score": 0.0, "valid": False, "numeric_match": 0.0}
    assert server.jobs["job-0"].items[0]["prompt"] == "2+3?"


def test_a_part_named_score_does_not_replace_the_reward(server: WireServer, verl_file: Any) -> None:
    parts = {"score": 1.0, "valid": 0.5, "base": 1.0, "repetition": 0.75}
    server.outcome = lambda _: succeeded(0.25) | {"parts": parts}
    named = [{"name": "numeric_match", "as": "score"}, {"name": "format", "as": "valid"}]
    spec = {"scorers": named, "penalties": [{"name": "repetition"}]}
    got = verl_file.compute_score("x", "5", "5", reward=spec, url=server.url)
    assert got == {"score": 0.25, "valid": True, "base": 1.0, "repetition": 0.75}


def test_verls_reward_loop_scores_a_step_with_a_single_job(server: WireServer, verl_file: Any) -> None:
    assert inspect.iscoroutinefunction(verl_file.compute_score_async)

    async def step() -> list[dict[str, Any]]:
        kwargs = {"reward": {"spec": {"scorers": SCORERS}, "fill": -1.0}, "url": server.url, "window_s": 1.0}
        calls = [
            verl_file.compute_score_async("x", text, "5", None, reward_router_address=None, **kwargs)
            for text in ("5", "6", "broken")
        ]
        return list(await asyncio.gather(*calls))

    got = asyncio.run(step())
    assert [each["score"] for each in got] == [1.0, 0.0, -1.0]
    assert all(each.keys() == KEYS for each in got)
    assert len(server.jobs) == 1


def test_verls_batch_function_scores_a_list_of_samples(server: WireServer, verl_file: Any) -> None:
    infos = [{"uid": "a"}, {"uid": "a"}, {"uid": "b"}]
    got = verl_file.compute_score_batch(
        data_sources=["x"] * 3,
        solution_strs=["5", "6", "broken"],
        ground_truths=["5"] * 3,
        extra_infos=infos,
        reward=SCORERS,
        url=server.url,
    )
    assert [(each["score"], each["valid"]) for each in got] == [(1.0, True), (0.0, True), (0.0, False)]
    assert all(each.keys() == KEYS for each in got)
    assert [each["group_id"] for each in server.jobs["job-0"].items] == ["0:0", "0:0", "0:1"]


def test_a_group_reward_is_rejected_for_single_samples(server: WireServer, verl_file: Any) -> None:
    spec = {"scorers": SCORERS, "penalties": [{"name": "group_length"}]}
    with pytest.raises(ValueError, match="use compute_score_batch"):
        verl_file.compute_score("x", "5", "5", reward=spec, url=server.url)
    with pytest.raises(ValueError, match="Put a `uid` into extra_info"):
        verl_file.compute_score_batch(["x"], ["5"], ["5"], [{}], reward=spec, url=server.url)
    assert not server.jobs


def test_verl_without_a_reward_raises_an_error(verl_file: Any) -> None:
    with pytest.raises(ValueError, match="The reward is empty"):
        verl_file.compute_score("x", "5", "5")


# ms-swift


class AsyncORM:
    """Stand-in for the base class of ms-swift."""

    def __init__(self, args: Any = None, **_: Any) -> None:
        self.args = args


def test_swift_finds_the_registered_reward_and_awaits_it(server: WireServer) -> None:
    orms: dict[str, Any] = {}
    registered = register_in(orms, AsyncORM, SCORERS, "assay", url=server.url)
    reward = orms["assay"](args="theirs")
    assert isinstance(reward, AsyncORM)
    assert isinstance(reward, SwiftReward)
    assert (registered.__name__, reward.args) == ("assay", "theirs")
    question = {"role": "user", "content": "2+3?"}
    columns = {
        "messages": [[question, {"role": "assistant", "content": text}] for text in ("5", "broken")],
        "solution": ["5", "5"],
        "prompt_id": ["p", "p"],
        "response_token_ids": [[1, 2, 3], [[4], [5, 6]]],
        "trainer_state": None,
    }
    assert asyncio.run(reward(["5", "broken"], **columns)) == [1.0, None]
    items = server.jobs["job-0"].items
    assert items[0]["prompt"] == [question]
    assert [each["response_tokens"] for each in items] == [3, 3]
    reward.client.close()


def test_importing_the_adapters_needs_no_trainer_and_no_torch() -> None:
    names = ["assay.rewards"] + [f"assay.rewards.{name}" for name in ("trl", "verl", "swift", "plain", "core")]
    code = f"import sys; {'; '.join(f'import {name}' for name in names)}; print(*sys.modules)"
    folder = str(Path(verl.__file__).parents[2])
    loaded = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": folder}, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "assay.rewards.trl" in loaded
    assert not {"torch", "numpy", "transformers", "trl", "verl", "swift"} & set(loaded)
