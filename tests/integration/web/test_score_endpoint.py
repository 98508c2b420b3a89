"""HTTP interface of the Pi0 reward server, with the real application and policy servers; the test runs the workers."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tasks.episodes.model import EPISODES
from tests.integration.api import Api, is_problem
from tests.integration.tasks.test_policy_scoring import hire_on
from tests.integration.web.test_reward_endpoints import with_rewards
from tests.support.fleet import Fleet, Hand
from tests.support.ports import free_port
from workers.development_policy.control import Handle, running

COLOURS = ("red", "green", "blue", "yellow")


@pytest.fixture
def server() -> Iterator[Handle]:
    with running() as handle:
        yield handle


@contextmanager
def working(*hands: Hand) -> Iterator[None]:
    """Run workers continuously in threads, as their processes would."""
    over = threading.Event()

    def work(hand: Hand) -> None:
        while not over.wait(0.01):
            hand.work()

    threads = [threading.Thread(target=work, args=[hand]) for hand in hands]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_health_is_the_word_ok(api: Api) -> None:
    reply = api.client.get("/health")
    assert (reply.status_code, reply.text) == (200, "ok")


def test_success_rates_are_in_order_with_their_validity(api: Api, fleet: Fleet, server: Handle) -> None:
    body = {
        "responses": ["reach the red target", {"text": "reach the blue target"}, ""],
        "metas": [{}, {}, {"task_id": 2}],
        "reward_function_kwargs": {"alpha": 1.0, "num_trials_per_task": 2, "max_workers": 2},
    }
    with working(hire_on(fleet, server.url), fleet.hire("cpu")):
        reply = api.client.post("/score", json=body).json
    assert reply["done_result"] == [1.0, 0.0, 1.0]
    assert (reply["valid"], reply["errors"]) == ([True] * 3, [None] * 3)
    assert "development policy" in reply["notes"][0]
    assert api.client.get(f"/v1/jobs/{reply['job']}").json["total"] == 3
    assert server.counts()["peak_in_flight"] == 1, "a single request is in flight per server"


def test_concurrent_episodes_are_limited_by_max_workers(api: Api, fleet: Fleet, server: Handle) -> None:
    body = {"responses": ["stay"] * 6, "reward_function_kwargs": {"max_workers": 1, "num_trials_per_task": 1}}
    server.set(latency_ms=5)
    device = hire_on(fleet, server.url)
    counts: list[int] = []
    with working(device, fleet.hire("cpu")), ThreadPoolExecutor(1) as pool:
        pending = pool.submit(lambda: api.client.post("/score", json=body).json)
        episodes: Any = fleet.runtime_of(device).get(EPISODES)
        while not pending.done():
            counts.append(sum(each.episodes for each in episodes.pool._servers.values()))
    assert pending.result()["done_result"] == [0.0] * 6
    assert max(counts) == 1


def test_an_episode_that_could_not_run_is_null_or_the_requested_fill(api: Api, fleet: Fleet, server: Handle) -> None:
    server.set(share_shape=1)
    with working(hire_on(fleet, server.url), fleet.hire("cpu")):
        reply = api.client.post("/score", json={"responses": ["reach the red target"]}).json
        filled = api.client.post(
            "/score", json={"responses": ["go"], "reward_function_kwargs": {"on_error": {"fill": -1.0}}}
        ).json
    assert (reply["done_result"], reply["valid"]) == ([None], [False])
    assert reply["errors"][0]["type"] == "policy_failed"
    assert (filled["done_result"], filled["valid"]) == ([-1.0], [False])


def test_the_same_endpoint_serves_text_rewards(api: Api, fleet: Fleet) -> None:
    body = {
        "responses": ["It is 5.", "6"],
        "metas": [{"answer": "5", "task_id": "GSM8K/1", "seed": None}, {"answer": "5", "suite": 3}],
        "reward_function_kwargs": {"scorer": "numeric_match"},
    }
    with working(fleet.hire("cpu")):
        reply = api.client.post("/score", json=body).json
    assert (reply["done_result"], reply["notes"]) == ([1.0, 0.0], [])


def test_trainers_are_rewarded_by_a_policy_that_a_named_reward_names(
    fleet: Fleet, server: Handle, tmp_path: Path
) -> None:
    spec = 'scorers = [{name = "policy", options = {trials = 2, task_id = 1}}]'
    api = with_rewards(fleet, tmp_path, f"[rewards.robot]\nfill = -1.0\n[rewards.robot.spec]\n{spec}\n")
    prompts = ["Say where. "] * 2
    query = [f"{prompts[0]}reach the {colour} target" for colour in ("green", "red")]
    with working(hire_on(fleet, server.url), fleet.hire("cpu")):
        told = api.client.post("/get_reward", json={"query": query, "prompts": prompts, "labels": ["x", None]}).json
        assert api.client.post("/rm", json={"response": "reach the green target"}).json == 1.0
    assert told["rewards"] == [1.0, 0.0]
    assert told["extra_logs"] == {"policy": [1.0, 0.0], "valid": [1.0, 1.0]}


def test_twenty_concurrent_calls_each_get_their_own_results(api: Api, fleet: Fleet, server: Handle) -> None:
    def call(number: int) -> list[float]:
        right = number % 4
        body = {
            "responses": [f"reach the {colour} target" for colour in COLOURS],
            "metas": [{"task_id": right, "seed": number}] * 4,
            "reward_function_kwargs": {"num_trials_per_task": 1},
        }
        found: list[float] = api.app.test_client().post("/score", json=body).json["done_result"]
        return found

    with working(hire_on(fleet, server.url), fleet.hire("cpu")), ThreadPoolExecutor(20) as pool:
        results = list(pool.map(call, range(20)))
    assert results == [[float(at == number % 4) for at in range(4)] for number in range(20)]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"responses": []},
        {"responses": "reach"},
        {"responses": [7]},
        {"responses": ["a"], "metas": [{}, {}]},
        {"responses": ["a"], "metas": [{"suite": "moon"}]},
        {"responses": ["a"], "reward_function_kwargs": {"scorer": "nothing"}},
        {"responses": ["a"], "reward_function_kwargs": {"reward": "nothing"}},
        {"responses": ["a"], "reward_function_kwargs": {"num_trials_per_task": 0}},
        {"responses": ["a"], "reward_function_kwargs": {"environment": {"name": "moon"}}},
    ],
)
def test_an_invalid_request_is_400_with_an_error(api: Api, body: object) -> None:
    reply = api.client.post("/score", json=body)
    assert is_problem(reply, 400)
    assert reply.json["error"] == reply.json["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"metas": [{"task_id": -1}]}, "metas[0].task_id"),
        ({"metas": [{}, {"seed": -1}]}, "metas[1].seed"),
        ({"reward_function_kwargs": {"num_trials_per_task": 0}}, "reward_function_kwargs.num_trials_per_task"),
        ({"reward_function_kwargs": {"max_workers": 10**6}}, "reward_function_kwargs.max_workers"),
        (
            {"reward_function_kwargs": {"libero_cfg": {"replan_steps": 0}}},
            "reward_function_kwargs.libero_cfg.replan_steps",
        ),
    ],
)
def test_an_error_names_the_field_as_the_client_sent_it(api: Api, body: dict[str, object], field: str) -> None:
    reply = api.client.post("/score", json={"responses": ["a", "b"]} | body)
    assert (reply.status_code, reply.json["field"]) == (400, field)
    assert reply.json["error"].startswith(f"{field}: ")


def test_a_body_that_is_not_json_is_400_with_an_error(api: Api) -> None:
    reply = api.client.post("/score", data=b"{", headers={"Content-Type": "application/json"})
    assert (reply.status_code, "not JSON" in reply.json["error"]) == (400, True)


def test_the_pool_status_has_the_fields_of_earlier_releases_and_a_list_of_servers(
    api: Api, fleet: Fleet, server: Handle
) -> None:
    assert api.client.get("/pool_status").json["total_clients"] == 0
    absent = free_port()
    hire_on(fleet, server.url)
    fleet.hire(index=1, policies=(f"ws://127.0.0.1:{absent}", server.url))
    status = api.client.get("/pool_status").json
    assert (status["total_clients"], status["available_clients"]) == (2, 1)
    assert sorted(status["hosts_ports"]) == sorted([["127.0.0.1", server.port], ["127.0.0.1", absent]])
    here, away = sorted(status["servers"], key=lambda each: not each["connected"])
    assert (here["connected"], here["policy"], here["version"]) == (True, "assay-development", "1")
    assert (away["connected"], away["reconnects"]) == (False, 0)


def test_only_files_that_a_job_has_are_served(api: Api) -> None:
    job = api.submitted(kind="score", items=[{"response": "x"}], spec={"scorers": [{"name": "repetition"}]})
    for name in ("0" * 32 + ".webp", "x.webp"):
        assert is_problem(api.client.get(f"/v1/jobs/{job}/files/{name}"), 404)
