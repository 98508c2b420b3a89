"""The length-penalty manager against a fake server and a fake chat API on the network."""

import json
import logging
import pickle
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from assay import ConnectionFailed, InvalidRequest, Retry, Unauthorized
from assay.rewards import LengthPenaltyConfig, LengthPenaltyRewardManager, ProfileMissing
from assay.rewards.length_penalty import server_judge

from tests.support.chat_api import ChatApi, Fault
from tests.support.data_proto import DataProto, Letters, make_data
from tests.support.programs import PATIENCE_S, wait_until
from tests.support.wire_server import Stored, WireServer, failed, succeeded

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUBMIT_RETRY", "POLL_RETRY"):
        monkeypatch.setattr(server_judge, name, Retry(give_up_after_s=0.5, first_delay_s=0.05))
    monkeypatch.setattr(server_judge, "BASE_SCORES_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer() as server:
        server.lists["profiles"] = [{"name": "development", "host": "127.0.0.1:6010", "models": ["development"]}]
        server.outcome = judged
        yield server


@pytest.fixture
def chat_api() -> Iterator[ChatApi]:
    with ChatApi() as api:
        api.reply = {"choices": [choice('{"rationale": "There are 2 issues.", "score": 8}')]}
        yield api


def choice(content: str, finish: str = "stop") -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}


def judged(item: dict[str, Any]) -> dict[str, Any]:
    """Judge an item: the score is the number of letters `g` in the response."""
    points, base = float(item["response"].count("g")), float(item.get("base_score", len(item["response"]) % 2))
    return succeeded(base + points, base=base, judge=points)


def right_or_wrong(solution_str: str, ground_truth: Any, **_: Any) -> float:
    return float(solution_str.startswith(ground_truth))


def manager(url: str, compute_score: Any = right_or_wrong, **config: Any) -> LengthPenaltyRewardManager:
    given = {"url": url, "enable_openai_reward": True, "timeout_seconds": PATIENCE_S} | config
    return LengthPenaltyRewardManager(Letters(), 0, compute_score, length_penalty_config=given)


def last_token_rewards(tensor: torch.Tensor, data: DataProto) -> list[float]:
    """Return the reward at the last token of each response; assert that every other element is 0."""
    lengths = data.batch["attention_mask"][:, data.batch["prompts"].shape[-1] :].sum(-1).tolist()
    found = [float(tensor[index, length - 1]) if length else 0.0 for index, length in enumerate(lengths)]
    assert tensor.dtype == torch.float32
    assert tensor.shape == data.batch["responses"].shape
    assert float(tensor.abs().sum()) == pytest.approx(sum(map(abs, found)))
    return found


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    extra = result["reward_extra_info"]
    return [dict(zip(extra, values, strict=True)) for values in zip(*extra.values(), strict=True)]


# Two interleaved groups: A has the lengths 4, 4, 6; B has 10, 20.
RESPONSES = ["Yggg", "Yg" + "." * 8, "no..", "Y" * 20, "Y....g"]
UIDS = ["A", "B", "A", "B", "A"]
TRUTHS = ["Y"] * 5


def test_rewards_are_at_the_last_token_and_in_input_order(server: WireServer) -> None:
    data = make_data(RESPONSES, UIDS, TRUTHS)
    result = manager(server.url, reward_coefficient=0.1)(data, return_dict=True)
    got = rows(result)
    assert [row["original_score"] for row in got] == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert [row["openai_quality_reward"] for row in got] == [3.0, 1.0, 0.0, 0.0, 1.0]
    assert [row["response_length"] for row in got] == [4, 10, 4, 20, 6]
    assert [row["median_length"] for row in got] == [4.0, 15.0, 4.0, 15.0, 4.0]
    # B: 10 and 20 deviate from 15 by a third, so the penalty is (1/3 - 0.3) / 0.2; A: 6 deviates from 4 by a half.
    third = (1 / 3 - 0.3) / 0.2
    assert [row["length_penalty"] for row in got] == pytest.approx([0.0, third, 0.0, third, 1.0])
    expected = [1.3, 1.1 - third, 0.0, 1.0 - third, 0.1]
    assert [row["reward"] for row in got] == pytest.approx(expected)
    assert last_token_rewards(result["reward_tensor"], data) == pytest.approx(expected)
    assert [row["valid"] for row in got] == [True] * 5


def test_responses_with_a_base_score_are_judged_by_a_single_job(server: WireServer) -> None:
    manager(server.url)(make_data(RESPONSES, UIDS, TRUTHS))
    (job,) = server.jobs.values()
    assert [item["id"] for item in job.items] == ["0", "1", "3", "4"], "a base score of 0 is not judged"
    assert {item["base_score"] for item in job.items} == {1.0}
    manager(server.url, judge_zero_scores=True)(make_data(RESPONSES, UIDS, TRUTHS))
    assert len(server.jobs["job-1"].items) == 5


def test_the_judge_job_uses_the_weighted_rubric_and_no_penalties(server: WireServer) -> None:
    server.lists["profiles"] = [{"name": "qianfan", "host": "qianfan.baidubce.com", "models": ["deepseek-v3"]}]
    endpoint = "https://qianfan.baidubce.com/v2/chat/completions"
    manager(server.url, api_endpoint=endpoint, num_async_workers=7)(make_data(RESPONSES, UIDS, TRUTHS))
    (job,) = server.requests("POST /v1/jobs")
    request = json.loads(job.body)
    judge = request["spec"]["judge"]
    assert (judge["profile"], judge["model"], judge["rubric"]) == ("qianfan", "deepseek-v3", "weighted")
    assert (judge["scale"], judge["judge_zero_scores"]) == ([1, 10], False)
    assert "penalties" not in request["spec"]
    assert request["spec"]["judge"]["concurrency"] == 7


def test_submit_returns_immediately_and_collect_waits_for_the_rewards(server: WireServer) -> None:
    server.held = True
    data = make_data(RESPONSES, UIDS, TRUTHS)
    handle = manager(server.url).submit(data)
    wait_until(lambda: server.jobs, "the job is there")
    assert not handle.done
    server.release()
    wait_until(lambda: handle.done, "it is judged")
    assert torch.equal(handle.collect(), handle.collect(return_dict=True)["reward_tensor"])


def test_batches_of_two_managers_never_mix(server: WireServer) -> None:
    server.held = True
    batches = [make_data(["Y" + "g" * n] * 3, ["u"] * 3, TRUTHS[:3]) for n in range(8)]
    two = [manager(server.url), manager(server.url)]
    handles = [two[n % 2].submit(batch) for n, batch in enumerate(batches)]
    wait_until(lambda: len(server.jobs) == 8, "eight jobs are in flight")
    server.release()
    for number, handle in enumerate(handles):
        extra = handle.collect(return_dict=True)["reward_extra_info"]
        assert extra["openai_quality_reward"] == [float(number)] * 3


def test_without_compute_score_the_servers_scorers_compute_base_scores(server: WireServer) -> None:
    result = manager(server.url, None, scorers=["numeric_match"])(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True)
    assert [row["original_score"] for row in rows(result)] == [0.0, 0.0, 0.0, 0.0, 0.0]
    (job,) = server.jobs.values()
    assert [item["reference"] for item in job.items] == TRUTHS
    assert "base_score" not in job.items[0]
    with pytest.raises(ValueError, match="compute_score"):
        manager(server.url, None)


def test_compute_score_has_precedence_over_the_servers_scorers(server: WireServer) -> None:
    manager(server.url, scorers=["numeric_match"])(make_data(RESPONSES, UIDS, TRUTHS))
    (seen,) = server.requests("POST /v1/jobs")
    assert "scorers" not in json.loads(seen.body)["spec"]
    assert all("base_score" in item for item in server.jobs["job-0"].items)


def test_base_scores_by_the_servers_scorers_raise_without_the_server() -> None:
    handle = manager(NOBODY, None, scorers=["numeric_match"], enable_openai_reward=False).submit(
        make_data(RESPONSES, UIDS, TRUTHS)
    )
    with pytest.raises(ConnectionFailed):
        handle.collect()


def test_the_fields_of_a_compute_score_dict_are_added_to_the_extra_info(server: WireServer) -> None:
    def with_more(solution_str: str, **_: Any) -> Any:
        return {"score": 1.0, "acc": True, "pred": solution_str[0]} if "g" in solution_str else {"score": 0.0}

    result = manager(server.url, with_more)(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True)
    extra = result["reward_extra_info"]
    assert extra["acc"] == [True, True, None, None, True]
    assert extra["pred"] == ["Y", "Y", None, None, "Y"]
    assert {len(values) for values in extra.values()} == {5}


def test_a_base_score_that_is_not_a_number_fails_only_its_response(server: WireServer) -> None:
    def broken(solution_str: str, **_: Any) -> float:
        return float("nan") if solution_str == "Yggg" else 1.0

    got = rows(manager(server.url, broken)(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True))
    assert [row["valid"] for row in got] == [False, True, True, True, True]
    assert got[0]["reward"] == 0.0
    assert got[2]["median_length"] == 5.0, "the median of 4 and 6, without the failed response"
    assert "0" not in [item["id"] for item in server.jobs["job-0"].items]


def test_an_empty_response_gets_no_reward_in_the_tensor(server: WireServer) -> None:
    data = make_data(["Yg", "", "Yg"], ["A", "A", "A"], ["Y", "", "Y"])
    result = manager(server.url, enable=False)(data, return_dict=True)
    assert result["reward_extra_info"]["response_length"] == [2, 0, 2]
    assert result["reward_extra_info"]["reward"] == [2.0, 1.0, 2.0]
    assert result["reward_tensor"][1].abs().sum() == 0
    assert last_token_rewards(result["reward_tensor"], data)[0] == 2.0


def test_scores_of_a_reward_model_are_returned_unchanged() -> None:
    data = make_data(["Y"], ["A"], ["Y"])
    data.batch["rm_scores"] = torch.full(data.batch["responses"].shape, 0.5)
    data.meta_info["reward_extra_keys"] = ["uid"]
    reward = manager(NOBODY)
    assert reward(data) is data.batch["rm_scores"]
    assert list(reward(data, return_dict=True)["reward_extra_info"]["uid"]) == ["A"]


def test_a_response_without_a_verdict_keeps_base_and_penalty_and_is_invalid(server: WireServer) -> None:
    def outcome(item: dict[str, Any]) -> dict[str, Any]:
        return failed("verdict_missing", base=1.0) if item["id"] == "0" else judged(item)

    server.outcome = outcome
    got = rows(manager(server.url)(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True))
    assert [row["valid"] for row in got] == [False, True, True, True, True]
    assert (got[0]["original_score"], got[0]["openai_quality_reward"]) == (1.0, 0.0)
    assert got[0]["median_length"] == 5.0
    assert got[0]["reward"] == 1.0


def test_samples_are_printed_per_data_source(server: WireServer, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_data(RESPONSES, UIDS, TRUTHS)
    data.non_tensor_batch["data_source"][3:] = "other"
    reward = LengthPenaltyRewardManager(
        Letters(), 1, right_or_wrong, length_penalty_config=LengthPenaltyConfig(url=server.url)
    )
    reward(data)
    printed = capsys.readouterr().out
    assert re.findall(r"\[response\] (.*)", printed) == [RESPONSES[0], RESPONSES[3]]
    assert printed.count("[ground_truth] Y") == 2
    assert "[prompt] prompt of A\n" in printed


# Log lines


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("assay.rewards")]


def test_the_log_shows_start_progress_and_end_of_judging(server: WireServer, caplog: pytest.LogCaptureFixture) -> None:
    server.held = True
    server.lists["workers"] = [{"name": "api.a.0", "pool": "api", "state": "ready"}]
    caplog.set_level(logging.INFO, "assay.rewards")
    handle = manager(server.url).submit(make_data(["Yg"] * 64, [str(n % 8) for n in range(64)], ["Y"] * 64))
    job: Stored = wait_until(lambda: next(iter(server.jobs.values()), None), "the job is there")  # type: ignore[assignment]
    for quarter in ("25.0% (16/64)", "50.0% (32/64)", "75.0% (48/64)"):
        server.settle(job, 16)
        line = f"OpenAI quality evaluation progress: {quarter}"
        wait_until(lambda line=line: line in messages(caplog), line)  # type: ignore[misc]
    server.release()
    handle.collect()
    assert messages(caplog) == [
        "Starting OpenAI worker processes for asynchronous API calls...",
        "OpenAI worker processes started successfully.",
        "Using asynchronous OpenAI workers to evaluate 64 responses",
        "OpenAI quality evaluation progress: 25.0% (16/64)",
        "OpenAI quality evaluation progress: 50.0% (32/64)",
        "OpenAI quality evaluation progress: 75.0% (48/64)",
        "Completed asynchronous OpenAI quality evaluation for 64 responses",
    ]


@pytest.mark.parametrize("workers", [[], [{"pool": "api", "state": "starting"}, {"pool": "cpu", "state": "ready"}]])
def test_the_log_says_workers_started_only_once_an_api_worker_is_ready(
    server: WireServer, caplog: pytest.LogCaptureFixture, workers: list[dict[str, Any]]
) -> None:
    server.lists["workers"] = workers
    caplog.set_level(logging.INFO, "assay.rewards")
    manager(server.url)(make_data(RESPONSES, UIDS, TRUTHS))
    assert messages(caplog)[:2] == [
        "Starting OpenAI worker processes for asynchronous API calls...",
        "The server reports no ready API worker yet: responses are judged once a worker is ready.",
    ]
    assert "OpenAI worker processes started successfully." not in messages(caplog)


# Starting and stopping


def test_workers_start_with_the_first_batch_and_stop_with_the_last(
    server: WireServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "assay.rewards")
    reward = manager(server.url)
    for _ in range(2):
        reward(make_data(RESPONSES, UIDS, TRUTHS))
    assert len(server.requests("GET /v1/profiles")) == 2
    with reward:
        for _ in range(3):
            reward(make_data(RESPONSES, UIDS, TRUTHS))
    assert len(server.requests("GET /v1/profiles")) == 3, "the profile is kept for the block"


def test_shutting_down_cancels_batches_in_flight(server: WireServer, caplog: pytest.LogCaptureFixture) -> None:
    server.held = True
    reward = manager(server.url, timeout_seconds=300.0)
    handle = reward.submit(make_data(RESPONSES, UIDS, TRUTHS))
    wait_until(lambda: server.jobs, "the job is there")
    server.settle(server.jobs["job-0"], 1)
    reward.shutdown_workers()
    result = handle.collect(return_dict=True)
    assert server.jobs["job-0"].view["state"] == "cancelled"
    assert [row["valid"] for row in rows(result)] == [True, False, True, False, False]
    assert not [line for line in messages(caplog) if line.startswith("Timeout")]


def test_shutting_down_before_the_profile_is_found_leaves_no_job(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_judge, "SUBMIT_RETRY", Retry(give_up_after_s=PATIENCE_S, first_delay_s=0.2))
    server.held = True
    server.fault("GET /v1/profiles", "503", times=3)
    reward = manager(server.url, timeout_seconds=300.0)
    handle = reward.submit(make_data(RESPONSES, UIDS, TRUTHS))
    wait_until(lambda: server.requests("GET /v1/profiles"), "the manager looks up its profile")
    reward.shutdown_workers()
    wait_until(lambda: handle.done, "the batch is over")
    assert [job.view["state"] for job in server.jobs.values()] in ([], ["cancelled"])
    assert [row["valid"] for row in rows(handle.collect(return_dict=True))] == [False, False, True, False, False]


def test_shutting_down_does_not_wait_for_direct_calls(chat_api: ChatApi) -> None:
    chat_api.fault = lambda body: Fault(hang_s=600) if "Yhang" in body["messages"][-1]["content"] else None
    reward = manager(NOBODY, api_endpoint=chat_api.url, api_key="sk-1", num_async_workers=2, timeout_seconds=300.0)
    handle = reward.submit(make_data(["Y1", "Yhang", "Y2", "Yhang more", "Y3"], ["A"] * 5, ["Y"] * 5))
    wait_until(lambda: chat_api.answered == 2 and chat_api.in_flight == 2, "both calls in flight hang")
    reward.shutdown_workers()
    wait_until(lambda: handle.done, "the batch is over")
    got = rows(handle.collect(return_dict=True))
    assert [row["valid"] for row in got] == [True, False, True, False, False]
    assert [row["original_score"] for row in got] == [1.0] * 5


def test_a_manager_can_be_pickled(server: WireServer) -> None:
    copy = pickle.loads(pickle.dumps(manager(server.url)))
    assert float(copy(make_data(["Yg"], ["A"], ["Y"])).sum()) == 2.0


# Timeouts


def test_verdicts_that_arrive_before_the_timeout_are_used(server: WireServer, caplog: pytest.LogCaptureFixture) -> None:
    server.held, server.settled_at_once = True, 3
    got = rows(manager(server.url, timeout_seconds=1.0)(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True))
    assert [row["valid"] for row in got] == [True, True, True, True, False]
    assert (got[4]["original_score"], got[4]["openai_quality_reward"]) == (1.0, 0.0)
    assert got[4]["reward"] == 1.0 - got[4]["length_penalty"]
    (warning,) = [line for line in messages(caplog) if line.startswith("Timeout")]
    assert re.fullmatch(r"Timeout waiting for OpenAI API result for request [0-9a-f]{16}", warning)
    wait_until(lambda: server.jobs["job-0"].view["state"] == "cancelled", "the job is cancelled")


def test_base_scores_by_the_servers_scorers_are_kept_after_the_timeout(
    server: WireServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.held = True
    reward = manager(server.url, None, scorers=["numeric_match"], timeout_seconds=1.5)
    handle = reward.submit(make_data(["Yggg", "Y..g", "Y...", "...."], ["A"] * 4, ["Y"] * 4))
    wait_until(lambda: "job-1" in server.jobs, "the base scores of the unjudged responses are requested")
    server.outcome = lambda item: succeeded(float(item["response"][0] == "Y"))
    server.settle(server.jobs["job-1"])
    got = rows(handle.collect(return_dict=True))
    assert [(row["original_score"], row["reward"], row["valid"]) for row in got] == [
        (1.0, 1.0, False),
        (1.0, 1.0, False),
        (1.0, 1.0, False),
        (0.0, 0.0, False),
    ]
    assert [row["openai_quality_reward"] for row in got] == [0.0] * 4
    assert len([line for line in messages(caplog) if line.startswith("Timeout waiting for OpenAI API")]) == 4
    assert "judge" not in json.loads(server.requests("POST /v1/jobs")[1].body)["spec"]


# Without a profile, a server or a key


def test_the_error_without_a_matching_profile_says_how_to_add_it(server: WireServer) -> None:
    reward = manager(server.url, api_endpoint="https://api.example.com/v1", api_key="sk-1")
    with pytest.raises(ProfileMissing, match="ASSAY_PROFILES_FILE"):
        reward.start_workers()
    with pytest.raises(ProfileMissing, match="ASSAY_PROFILES_FILE"):
        reward(make_data(RESPONSES, UIDS, TRUTHS))


def test_without_a_server_the_api_is_called_directly(chat_api: ChatApi, caplog: pytest.LogCaptureFixture) -> None:
    reward = manager(NOBODY, api_endpoint=f"{chat_api.url}/chat/completions", api_key="sk-1", model_name="judge-1")
    got = rows(reward(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True))
    assert [row["openai_quality_reward"] for row in got] == [8.0, 8.0, 0.0, 8.0, 8.0]
    assert all(row["valid"] for row in got)
    assert {seen.headers["authorization"] for seen in chat_api.seen} == {"Bearer sk-1"}
    assert {(seen.body["model"], seen.body["temperature"]) for seen in chat_api.seen} == {("judge-1", 0)}
    (warning,) = [line for line in messages(caplog) if "synchronously" in line]
    assert chat_api.url.split("/")[2] in warning
    assert "sk-1" not in caplog.text


def test_direct_calls_deduplicate_questions_and_respect_the_concurrency_limit(chat_api: ChatApi) -> None:
    chat_api.delay_s = 0.05
    reward = manager(NOBODY, api_endpoint=chat_api.url, api_key="sk-1", num_async_workers=3)
    responses = [f"Y{n % 12}" for n in range(24)]
    got = rows(reward(make_data(responses, ["A"] * 24, ["Y"] * 24), return_dict=True))
    assert {row["openai_quality_reward"] for row in got} == {8.0}
    assert len(chat_api.seen) == 12
    assert chat_api.peak == 3


def test_direct_calls_are_retried_after_429_and_5xx(chat_api: ChatApi) -> None:
    trouble = iter([Fault(429, headers={"Retry-After": "0"}), Fault(500), Fault(503)])
    chat_api.fault = lambda _: next(trouble, None)
    reward = manager(NOBODY, api_endpoint=chat_api.url, api_key="sk-1")
    got = rows(reward(make_data(["Yg"], ["A"], ["Y"]), return_dict=True))
    assert (got[0]["openai_quality_reward"], got[0]["valid"]) == (8.0, True)
    assert len(chat_api.seen) == 4


@pytest.mark.parametrize(
    "reply", [choice("I will not say."), choice("Score: 8", "length"), choice("Score: 15"), {"message": None}]
)
def test_a_direct_reply_without_a_verdict_is_invalid(chat_api: ChatApi, reply: dict[str, Any]) -> None:
    chat_api.reply = {"choices": [reply]}
    reward = manager(NOBODY, api_endpoint=chat_api.url, api_key="sk-1")
    data = make_data(["Yg"], ["A"], ["Y"])
    (got,) = rows(reward(data, return_dict=True))
    assert (got["openai_quality_reward"], got["valid"], got["reward"]) == (0.0, False, 1.0)
    chat_api.reply = {"choices": [choice("8")]}
    (again,) = rows(reward(data, return_dict=True))
    assert (again["openai_quality_reward"], again["valid"]) == (8.0, True), "a failure is not remembered"


@pytest.mark.parametrize("fault", [Fault(hang_s=3600), Fault(drip_s=0.05)])
def test_a_hanging_call_invalidates_only_its_own_response(
    chat_api: ChatApi, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    chat_api.fault = lambda body: fault if "Yhang" in body["messages"][-1]["content"] else None
    reward = manager(NOBODY, api_endpoint=chat_api.url, api_key="sk-1", timeout_seconds=15.0)
    got = rows(reward(make_data(["Yhang", "Y1", "Y2", "Y3"], ["A"] * 4, ["Y"] * 4), return_dict=True))
    assert [row["valid"] for row in got] == [False, True, True, True]
    assert got[0]["original_score"] == 1.0
    assert [line[:48] for line in messages(caplog)][-1:] == ["Timeout waiting for OpenAI API result for reques"]


@pytest.fixture
def two_ways(server: WireServer, chat_api: ChatApi) -> dict[str, Any]:
    """Configuration of a manager that can call the same API through the server and directly."""
    server.lists["profiles"] = [{"name": "main", "host": chat_api.url.split("/")[2], "models": ["deepseek-v3"]}]
    return {"url": server.url, "api_endpoint": chat_api.url, "api_key": "sk-1"}


def scored(item: dict[str, Any]) -> float:
    """Return the same base score as `right_or_wrong`: sent with the item, or computed by the server's scorers."""
    return float(item.get("base_score", item["response"].startswith(item.get("reference", "?"))))


def unheard(item: dict[str, Any]) -> dict[str, Any]:
    """Outcome of an item while the server cannot reach the API; an item with a base score of 0 needs no judge."""
    base = scored(item)
    return failed("api_unavailable", base=base) if base else succeeded(base, base=base)


#: The two sources of base scores: a function of the trainer, and scorers of the server.
BASES = pytest.mark.parametrize(
    "base", [{"compute_score": right_or_wrong}, {"compute_score": None, "scorers": ["prefix"]}]
)


@BASES
def test_responses_that_fail_on_the_server_are_judged_directly(
    server: WireServer,
    chat_api: ChatApi,
    two_ways: dict[str, Any],
    base: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.outcome = unheard
    data = make_data(RESPONSES, UIDS, TRUTHS)
    result = manager(**two_ways, **base, reward_coefficient=0.1)(data, return_dict=True)
    got = rows(result)
    assert [row["original_score"] for row in got] == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert [row["openai_quality_reward"] for row in got] == [8.0, 8.0, 0.0, 8.0, 8.0]
    assert [row["median_length"] for row in got] == [4.0, 15.0, 4.0, 15.0, 4.0], "every response counts"
    third = (1 / 3 - 0.3) / 0.2
    expected = [1.8, 1.8 - third, 0.0, 1.8 - third, 0.8]
    assert [row["reward"] for row in got] == pytest.approx(expected)
    assert last_token_rewards(result["reward_tensor"], data) == pytest.approx(expected)
    assert all(row["valid"] for row in got)
    assert [seen.headers["authorization"] for seen in chat_api.seen] == ["Bearer sk-1"] * 4
    (warning,) = [line for line in messages(caplog) if "synchronously" in line]
    assert "4 responses (api_unavailable: It was asked to fail.)" in warning


@BASES
def test_only_responses_without_a_reply_of_the_judge_are_judged_directly(
    server: WireServer, chat_api: ChatApi, two_ways: dict[str, Any], base: dict[str, Any]
) -> None:
    outcomes = {
        "Y1": lambda: succeeded(4.0, base=1.0, judge=3.0),
        "Y2": lambda: failed("api_timeout", base=1.0),
        "Y3": lambda: failed("verdict_missing", base=1.0),
        "Y4": lambda: failed("api_refused", base=1.0),
    }
    server.outcome = lambda item: outcomes[item["response"]]()
    got = rows(manager(**two_ways, **base)(make_data(list(outcomes), ["A"] * 4, ["Y"] * 4), return_dict=True))
    assert [row["openai_quality_reward"] for row in got] == [3.0, 8.0, 0.0, 8.0]
    assert [row["valid"] for row in got] == [True, True, False, True]
    assert [row["reward"] for row in got] == [4.0, 9.0, 1.0, 9.0]
    assert len(chat_api.seen) == 2


def test_responses_with_failed_scorers_are_not_judged_directly(
    server: WireServer, chat_api: ChatApi, two_ways: dict[str, Any]
) -> None:
    server.outcome = lambda item: failed("reference_missing") if item["id"] == "0" else unheard(item)
    reward = manager(**two_ways, compute_score=None, scorers=["prefix"])
    got = rows(reward(make_data(["Yg", "Yb"], ["A", "A"], ["Y", "Y"]), return_dict=True))
    assert [(row["reward"], row["valid"]) for row in got] == [(0.0, False), (9.0, True)]
    assert len(chat_api.seen) == 1


@BASES
def test_direct_calls_end_at_the_deadline_of_the_batch(
    server: WireServer,
    chat_api: ChatApi,
    two_ways: dict[str, Any],
    base: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.outcome = unheard
    chat_api.fault = lambda body: Fault(hang_s=3600) if "Yhang" in body["messages"][-1]["content"] else None
    reward = manager(**two_ways, **base, timeout_seconds=15.0)
    got = rows(reward(make_data(["Yhang", "Y...."], ["A"] * 2, ["Y"] * 2), return_dict=True))
    assert [(row["original_score"], row["openai_quality_reward"], row["valid"]) for row in got] == [
        (1.0, 0.0, False),
        (1.0, 8.0, True),
    ]
    assert got[0]["reward"] == 1.0
    assert re.fullmatch(r"Timeout waiting for OpenAI API result for request [0-9a-f]{16}", messages(caplog)[-1])
    assert not [line for line in messages(caplog) if line.startswith("No verdict")]


@BASES
def test_without_a_key_responses_that_fail_on_the_server_are_invalid(
    server: WireServer,
    chat_api: ChatApi,
    two_ways: dict[str, Any],
    base: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.outcome = unheard
    got = rows(manager(**two_ways | base | {"api_key": ""})(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True))
    assert [row["original_score"] for row in got] == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert [row["openai_quality_reward"] for row in got] == [0.0] * 5
    assert [row["valid"] for row in got] == [False, False, True, False, False]
    assert not chat_api.seen
    assert "there is no api_key" in caplog.text
    assert messages(caplog)[-1] == "No verdict for responses 0, 1, 3, 4: api_unavailable: It was asked to fail."


def test_without_server_and_key_judging_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    got = rows(manager(NOBODY)(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True))
    assert [row["openai_quality_reward"] for row in got] == [0.0] * 5
    assert [row["length_penalty"] for row in got][4] == 1.0, "the length penalty still applies"
    assert all(row["valid"] for row in got)
    assert "OpenAI quality evaluation is skipped" in caplog.text


@pytest.mark.parametrize(("status", "error"), [("401", Unauthorized), ("422", InvalidRequest)])
def test_a_permanent_error_is_raised_and_not_handled_as_an_unavailable_server(
    server: WireServer, status: str, error: type[Exception]
) -> None:
    server.fault("POST /v1/jobs", status)
    with pytest.raises(error):
        manager(server.url)(make_data(RESPONSES, UIDS, TRUTHS))


def test_a_server_that_fails_between_batches_causes_invalid_rewards_not_lower_rewards(server: WireServer) -> None:
    reward = manager(server.url)
    assert all(row["valid"] for row in rows(reward(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True)))
    server.fault("POST /v1/jobs", "500", times=99)
    got = rows(reward(make_data(RESPONSES, UIDS, TRUTHS), return_dict=True))
    assert [row["valid"] for row in got] == [False, False, True, False, False]


def test_every_thread_ends_with_its_batch(server: WireServer) -> None:
    manager(server.url)(make_data(RESPONSES, UIDS, TRUTHS))
    wait_until(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("assay-")], "every thread has ended"
    )
