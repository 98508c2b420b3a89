"""Endpoints for trainers, /get_reward, /rm and /verify, on the real application with workers that the test runs."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from config.pools import WorkerPool
from tests.integration.api import Api, is_problem
from tests.support.chat_api import ChatApi, Fault
from tests.support.fleet import Fleet, Hand
from tests.unit.tasks.test_response_lengths import make_tokenizer

REWARDS = """
default = "number"
[rewards.number]
fill = -1.0
[rewards.number.spec]
scorers = [{name = "numeric_match"}]
[rewards.strict]
reference_field = "gold"
[rewards.strict.spec]
scorers = [{name = "format", gate = true}, {name = "numeric_match", as = "right"}, {name = "exact_match"}]
"""


@pytest.fixture
def rewarding(fleet: Fleet, tmp_path: Path) -> Api:
    return with_rewards(fleet, tmp_path, REWARDS)


def with_rewards(fleet: Fleet, tmp_path: Path, text: str, **settings: Any) -> Api:
    path = tmp_path / "rewards.toml"
    path.write_text(text)
    fleet.settings = fleet.settings.model_copy(update={"rewards_file": path} | settings)
    return Api(fleet)


@contextmanager
def working(fleet: Fleet, *pools: WorkerPool) -> Iterator[None]:
    """Run workers continuously in threads, as their processes would; by default a single CPU worker."""
    over = threading.Event()

    def work(hand: Hand) -> None:
        while not over.wait(0.01):
            hand.work()

    threads = [threading.Thread(target=work, args=[fleet.hire(pool)]) for pool in pools or ("cpu",)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def post(api: Api, path: str, body: Any) -> TestResponse:
    """Send a request through a new test client, so that many threads may send at once."""
    return api.app.test_client().post(path, json=body)


def jobs(api: Api) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = api.client.get("/v1/jobs").json["jobs"]
    return listed


# --- choice of the reward ---------------------------------------------------------------------------------------------


def test_the_rewards_are_listed_with_the_default(rewarding: Api) -> None:
    number, strict = rewarding.client.get("/v1/rewards").json["rewards"]
    assert number == {
        "name": "number", "fill": -1.0, "reference_field": "", "default": True,
        "spec": {"scorers": [{"name": "numeric_match"}]},
    }  # fmt: skip
    assert (strict["name"], strict["fill"], strict["default"]) == ("strict", 0.0, False)


@pytest.mark.parametrize("path", ["/get_reward", "/rm", "/verify"])
def test_an_unknown_reward_is_refused_with_a_list_of_known_rewards(rewarding: Api, path: str) -> None:
    reply = post(rewarding, f"{path}?reward=nubmer", {})
    assert is_problem(reply, 422, "reward")
    assert "(number, strict)" in reply.json["detail"]
    assert "[rewards.NAME]" in reply.json["detail"]


def test_without_a_default_the_request_must_name_a_reward(fleet: Fleet, tmp_path: Path) -> None:
    api = with_rewards(fleet, tmp_path, REWARDS.replace("default", "# default"))
    assert is_problem(post(api, "/get_reward", {"query": ["5"]}), 422, "reward")
    assert post(api, "/get_reward?reward=number", {"query": []}).status_code == 200


def test_the_error_without_a_rewards_file_names_the_setting(api: Api) -> None:
    assert api.client.get("/v1/rewards").json == {"rewards": []}
    for path in ("/get_reward", "/rm", "/verify", "/rm?reward=number"):
        reply = post(api, path, {"query": ["5"]})
        assert is_problem(reply, 422, "reward")
        assert "ASSAY_REWARDS_FILE" in reply.json["detail"]


def test_a_spec_in_the_query_is_refused(rewarding: Api) -> None:
    assert is_problem(post(rewarding, "/get_reward?spec={}", {"query": ["5"]}), 422, "spec")


# --- OpenRLHF ---------------------------------------------------------------------------------------------------------


def test_openrlhf_gets_a_number_for_every_query_in_order(rewarding: Api, fleet: Fleet) -> None:
    body = {
        "query": ["2+3?It is 5.<|im_end|>", "2+2?It is 5.", "2+3?No idea", "1+1?2"],
        "prompts": ["2+3?", "2+2?", "2+3?", "1+1?"],
        "labels": ["5", 4, None, ["3", "2"]],
    }
    with working(fleet):
        reply = post(rewarding, "/get_reward", body)
    assert reply.status_code == 200, reply.text
    assert reply.json == {
        "rewards": [1.0, 0.0, -1.0, 1.0],
        "scores": [1.0, 0.0, -1.0, 1.0],
        "extra_logs": {"numeric_match": [1.0, 0.0, 0.0, 1.0], "valid": [1.0, 1.0, 0.0, 1.0]},
    }
    (job,) = jobs(rewarding)
    assert (job["kind"], job["priority"], job["metadata"]["reward"]) == ("score", "interactive", "number")
    assert [row["group_id"] for row in fleet.rows(job["id"])] == ["0", "1", "0", "3"]


def test_every_answer_has_the_same_log_names_regardless_of_failures(rewarding: Api, fleet: Fleet) -> None:
    right = "<think>2+3</think><answer>5</answer>"
    names = {"format", "right", "exact_match", "valid"}
    with working(fleet):
        for query, label, valid in ((right, "5", 1.0), ("5", "5", 1.0), (right, None, 0.0)):
            logs = post(rewarding, "/get_reward?reward=strict", {"query": [query], "labels": [label]}).json[
                "extra_logs"
            ]
            assert (set(logs), logs["valid"]) == (names, [valid])
    empty = post(rewarding, "/get_reward?reward=strict", {"query": []}).json["extra_logs"]
    assert empty == {name: [] for name in names}


@pytest.mark.parametrize("body", [{"query": [], "prompts": [], "labels": []}, {"query": []}])
def test_empty_lists_are_answered_with_empty_lists_and_make_no_job(rewarding: Api, body: dict[str, Any]) -> None:
    reply = post(rewarding, "/get_reward", body)
    assert reply.status_code == 200
    assert reply.json == {"rewards": [], "scores": [], "extra_logs": {"numeric_match": [], "valid": []}}
    assert jobs(rewarding) == []


def test_without_prompts_the_whole_query_is_the_response(rewarding: Api, fleet: Fleet) -> None:
    with working(fleet):
        reply = post(rewarding, "/get_reward", {"query": ["2+3? 5"], "labels": [5], "prompts": None, "images": [None]})
    assert reply.json["rewards"] == [1.0]


WHOLE = """
[rewards.whole]
fill = -1.0
[rewards.whole.spec]
scorers = [{name = "numeric_match"}]
judge = {profile = "main", rubric = "weighted", reward_coefficient = 0.1, use_schema = "never", max_retries = 0}
penalties = [{name = "group_length"}]
tokenizer = "small"
group_statistics = true
"""


def judged(fleet: Fleet, tmp_path: Path, judge: ChatApi, rewards: str, **settings: Any) -> Api:
    """Make the application with a judge that always gives 6, and with a tokenizer."""
    verdict = {"index": 0, "message": {"role": "assistant", "content": "Score: 6"}, "finish_reason": "stop"}
    judge.reply = {"choices": [verdict]}
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(f'[profiles.main]\nbase_url = "{judge.url}"\nmodels = ["m"]\n')
    make_tokenizer(tmp_path / "tokenizers/small", "so", "it", "is")
    settings |= {"tokenizers_dir": tmp_path / "tokenizers", "profiles_file": profiles}
    return with_rewards(fleet, tmp_path, rewards, **settings)


def test_rewards_with_judge_penalties_and_groups_have_the_same_log_names(fleet: Fleet, tmp_path: Path) -> None:
    with ChatApi() as judge:
        judge.fault = lambda body: Fault(status=400) if "so so 7" in json.dumps(body["messages"]) else None
        api = judged(fleet, tmp_path, judge, WHOLE)
        responses = ["5?so it is 5", "5?so so so so so so so so so so so 5", "5?so it is 5", "7?so so 7", "8?9"]
        body = {"query": responses, "prompts": ["5?", "5?", "5?", "7?", "8?"], "labels": [5, 5, 5, 7, 8]}
        with working(fleet, "cpu", "api"):
            answer = post(api, "/get_reward", body).json
            # OpenRLHF sends each sample alone, as a group of one: the log names are the same, regardless of failures.
            for number in range(5):
                alone = {name: values[number : number + 1] for name, values in body.items()}
                assert set(post(api, "/get_reward", alone).json["extra_logs"]) == set(answer["extra_logs"])
    logs = answer["extra_logs"]
    assert answer["rewards"] == pytest.approx([1.6, 0.6, 1.6, -1.0, 0.0]), (
        "the long response of its group has a penalty of 1"
    )
    assert logs["valid"] == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert logs["base"] == [1.0, 1.0, 1.0, 1.0, 0.0], "known parts of a failed item are returned"
    assert logs["judge"] == [6.0, 6.0, 6.0, 0.0, 0.0]
    assert logs["group_length"] == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert logs["group_mean"] == pytest.approx([3.8 / 3, 3.8 / 3, 3.8 / 3, 0.0, 0.0])
    known = {name for name in fleet.rows(jobs(api)[-1]["id"])[0]["parts"] if not name.startswith("judge.")}
    assert set(logs) == known | {"valid"}


def test_a_hanging_judge_call_costs_a_single_reward_of_the_request(fleet: Fleet, tmp_path: Path) -> None:
    rewards = WHOLE.replace("penalties", "# penalties").replace("group_statistics", "# group_statistics")
    with ChatApi() as judge:
        judge.fault = lambda body: Fault(hang_s=600) if "It is 7." in json.dumps(body["messages"]) else None
        api = judged(
            fleet, tmp_path, judge, rewards.replace("max_retries", "timeout_s = 300, max_retries"), max_wait_s=20
        )
        body = {"query": [f"It is {number}." for number in range(5, 9)], "labels": [5, 6, 7, 8]}
        with working(fleet, "cpu", "api"):
            answer = post(api, "/get_reward", body).json
            assert answer["rewards"] == pytest.approx([1.6, 1.6, -1.0, 1.6])
            assert answer["extra_logs"]["valid"] == [1.0, 1.0, 0.0, 1.0]
            assert jobs(api)[0]["state"] == "cancelled"


# --- slime ------------------------------------------------------------------------------------------------------------


def test_slime_gets_the_number_itself_or_an_object_with_it(rewarding: Api, fleet: Fleet) -> None:
    sample = {"prompt": [{"role": "user", "content": "2+3?"}], "response": "5<|im_end|>", "label": "5", "index": 3}
    with working(fleet):
        assert post(rewarding, "/rm", sample).data == b"1.0"
        assert post(rewarding, "/rm", sample | {"prompt": "2+3?", "label": 6}).json == 0.0
        assert post(rewarding, "/rm", sample | {"label": None}).json == -1.0
        assert post(rewarding, "/rm?detail=true", sample).json == {
            "score": 1.0, "valid": True, "parts": {"numeric_match": 1.0}, "error": None,
        }  # fmt: skip
        failed = post(rewarding, "/rm?detail=true", sample | {"label": None}).json
    assert (failed["score"], failed["valid"], failed["parts"]) == (-1.0, False, {"numeric_match": None})
    assert failed["error"]["type"] == "reference_missing"
    assert is_problem(post(rewarding, "/rm?detail=yes", sample), 422, "detail")


# --- NeMo-Gym ---------------------------------------------------------------------------------------------------------


def response(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "r1", "output": [{"type": "message", "role": "assistant", "content": content, "status": "completed"}]}


def test_nemo_gym_gets_its_own_body_with_the_reward(rewarding: Api, fleet: Fleet) -> None:
    body = {
        "responses_create_params": {"input": [{"role": "user", "content": "2+3?"}], "temperature": 1.0},
        "response": response("It is 5."),
        "expected_answer": "5",
        "row": {"id": 7, "tags": ["a"]},
    }
    with working(fleet):
        verified = post(rewarding, "/verify", body).json
        detail = verified.pop("reward_detail")
        assert (verified.pop("reward"), verified.pop("mask_sample"), verified) == (1.0, False, body)
        assert detail == {"score": 1.0, "valid": True, "parts": {"numeric_match": 1.0}, "error": None}
        wrong = post(rewarding, "/verify?reward=strict", body | {"gold": "6"}).json
        assert (wrong["reward"], wrong["reward_detail"]["valid"]) == (0.0, True)
        failed = post(rewarding, "/verify", {**body, "expected_answer": None, "reward": 9}).json
    assert (failed["reward"], failed["mask_sample"]) == (-1.0, True)
    assert failed["failure_kind"] == "assay:reference_missing"
    assert failed["failure_reason"] == failed["reward_detail"]["error"]["message"]


# --- concurrency ------------------------------------------------------------------------------------------------------


def test_two_hundred_concurrent_requests_each_get_their_own_answer(rewarding: Api, fleet: Fleet) -> None:
    def ask(number: int) -> tuple[int, Any]:
        """Send a right response, a wrong response, or a response without a label, in turn."""
        label = (str(number), str(number + 1), None)[number % 3]
        query = f"{number}?It is {number}."
        reply = post(rewarding, "/get_reward", {"query": [query], "prompts": [f"{number}?"], "labels": [label]})
        return reply.status_code, reply.json

    with working(fleet), ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(ask, range(200)))
    assert {status for status, _ in answers} == {200}, [a for s, a in answers if s != 200][:2]
    assert [answer["rewards"] for _, answer in answers] == [[(1.0, 0.0, -1.0)[number % 3]] for number in range(200)]
    assert rewarding.app.extensions["assay"].long_requests.take(), "every long request was released"


def test_without_a_free_long_request_the_trainer_gets_503_with_a_retry_after(rewarding: Api) -> None:
    long_requests = rewarding.app.extensions["assay"].long_requests
    while long_requests.take():
        pass
    for path, body in (("/get_reward", {"query": ["5"]}), ("/rm", {"response": "5"})):
        reply = post(rewarding, path, body)
        assert is_problem(reply, 503)
        assert reply.headers["Retry-After"] == "1"
    assert post(rewarding, "/get_reward", {"query": []}).status_code == 200
    assert jobs(rewarding) == []


# --- timeouts and shutdown --------------------------------------------------------------------------------------------


def test_items_not_done_in_time_are_filled_marked_invalid_and_cancelled(fleet: Fleet, tmp_path: Path) -> None:
    api = with_rewards(fleet, tmp_path, REWARDS, max_wait_s=0.3)
    reply = post(api, "/get_reward", {"query": ["5", "6"], "labels": ["5", "5"]})
    assert reply.status_code == 200
    assert (reply.json["rewards"], reply.json["extra_logs"]["valid"]) == ([-1.0, -1.0], [0.0, 0.0])
    detail = post(api, "/rm?detail=true", {"response": "5", "label": "5"}).json
    assert (detail["score"], detail["valid"], detail["error"]["type"]) == (-1.0, False, "cancelled")
    assert [job["state"] for job in jobs(api)] == ["cancelled", "cancelled"]
    hand = fleet.hire("cpu")
    fleet.work(hand)
    assert [job["workers"] for job in jobs(api)] == [{}, {}], "no worker runs items of a cancelled job"


def test_a_stopping_process_answers_503_so_that_the_trainer_tries_another(rewarding: Api) -> None:
    rewarding.app.extensions["assay"].long_requests.is_serving = lambda: False
    reply = post(rewarding, "/rm", {"response": "5", "label": "5"})
    assert is_problem(reply, 503)
    assert [job["state"] for job in jobs(rewarding)] == ["cancelled"]


def test_jobs_of_trainers_are_kept_for_an_hour_only(rewarding: Api, fleet: Fleet) -> None:
    with working(fleet):
        post(rewarding, "/rm", {"response": "5", "label": "5"})
    (job,) = jobs(rewarding)
    _, expires = fleet.core.state.zrange("assay:expiry", 0, -1, withscores=True)[0]
    assert expires == pytest.approx(job["ended_at"] + 3600, abs=1)


def test_a_full_backlog_refuses_requests_of_trainers(fleet: Fleet, tmp_path: Path) -> None:
    api = with_rewards(fleet, tmp_path, REWARDS, backlog_items=3)
    api.submitted(*({"x": number} for number in range(4)))
    reply = post(api, "/rm", {"response": "5"})
    assert is_problem(reply, 503)
    assert reply.headers["Retry-After"] == "5"
    assert [job["kind"] for job in jobs(api)] == ["simulated"]


# --- invalid requests -------------------------------------------------------------------------------------------------

CASES: list[tuple[str, bytes, int, str | None]] = [
    ("/get_reward", b"", 400, None),
    ("/get_reward", b"{", 400, None),
    ("/get_reward", b"\xff", 400, None),
    ("/get_reward", b"[]", 422, None),
    ("/get_reward", b"{}", 422, "query"),
    ("/get_reward", b'{"query": "5"}', 422, "query"),
    ("/get_reward", b'{"query": [5]}', 422, "query[0]"),
    ("/get_reward", b'{"query": [null]}', 422, "query[0]"),
    ("/get_reward", b'{"query": ["5"], "prompts": []}', 422, None),
    ("/get_reward", b'{"query": ["5"], "prompts": ["a", "b"]}', 422, None),
    ("/get_reward", b'{"query": ["5"], "prompts": [5]}', 422, "prompts[0]"),
    ("/get_reward", b'{"query": ["5"], "labels": ["5", "6"]}', 422, None),
    ("/get_reward", b'{"query": [], "labels": ["5"]}', 422, None),
    ("/get_reward", b'{"query": ["5"], "labels": [{"a": 1}]}', 422, "labels[0]"),
    ("/get_reward", b'{"query": ["5"], "labels": [true]}', 422, "labels[0]"),
    ("/get_reward", b'{"query": ["5", "6"], "labels": [1, NaN]}', 400, "labels[1]"),
    ("/get_reward", b'{"query": ["5"], "labels": [1e999]}', 400, "labels[0]"),
    ("/get_reward", b'{"query": ["\\ud800"]}', 400, None),
    ("/get_reward", b'{"query": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, None),
    ("/rm", b"5", 422, None),
    ("/rm", b"{}", 422, "response"),
    ("/rm", b'{"response": null}', 422, "response"),
    ("/rm", b'{"response": []}', 422, "response"),
    ("/rm", b'{"response": [{"role": "user", "content": "5"}]}', 422, "response"),
    ("/rm", b'{"response": "5", "prompt": 5}', 422, "prompt"),
    ("/rm", b'{"response": "5", "prompt": [{"content": "5"}]}', 422, "prompt[0].role"),
    ("/rm", b'{"response": "5", "label": {"a": 1}}', 422, "label"),
    ("/rm", b'{"response": "5", "label": Infinity}', 400, "label"),
    (
        "/rm",
        b'{"response": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": NaN}}]}]}',
        400,
        "response[0].tool_calls[0].function.arguments",
    ),
    ("/verify", b"{}", 422, "responses_create_params"),
    ("/verify", b'{"responses_create_params": {}, "response": {}}', 422, "response.output"),
    ("/verify", b'{"responses_create_params": {"input": 5}, "response": {"output": []}}', 422, None),
    ("/verify", b'{"responses_create_params": {}, "response": {"output": []}, "answer": {"a": 1}}', 422, "answer"),
    ("/verify", b'{"responses_create_params": {}, "response": {"output": []}, "row": {"a": NaN}}', 400, "row.a"),
]


@pytest.mark.parametrize(("path", "body", "status", "field"), CASES)
def test_an_invalid_request_is_refused_with_its_field_and_makes_no_job(
    rewarding: Api, path: str, body: bytes, status: int, field: str | None
) -> None:
    assert is_problem(rewarding.client.post(path, data=body, content_type="application/json"), status, field)
    assert jobs(rewarding) == []


@pytest.mark.parametrize("path", ["/get_reward", "/rm", "/verify"])
def test_a_wrong_content_type_is_refused(rewarding: Api, path: str) -> None:
    reply = rewarding.client.post(path, data=json.dumps({"query": ["5"]}), content_type="text/plain")
    assert is_problem(reply, 415, "Content-Type")
    assert is_problem(rewarding.client.get(path), 405)


def test_a_text_of_ten_megabytes_is_refused_and_a_text_of_eight_is_accepted(rewarding: Api, fleet: Fleet) -> None:
    long = "x" * 10_000_000
    assert is_problem(post(rewarding, "/get_reward", {"query": ["5", long]}), 413, "query[1]")
    assert is_problem(post(rewarding, "/rm", {"response": long}), 413, "response")
    assert is_problem(
        post(rewarding, "/verify", {"responses_create_params": {}, "response": response(long)}), 413, "response.output"
    )
    assert jobs(rewarding) == []
    with working(fleet):
        assert post(rewarding, "/rm", {"response": long[:7_900_000] + " 5", "label": "5"}).json == 1.0


def test_too_many_samples_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    api = with_rewards(fleet, tmp_path, REWARDS, max_items=3)
    assert is_problem(post(api, "/get_reward", {"query": ["5"] * 4}), 413)
