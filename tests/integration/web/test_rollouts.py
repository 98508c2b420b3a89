"""Rollouts over HTTP: create, put and get samples, pause, announce versions."""

import hashlib
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet
from tests.support.rollouts import SIMULATED


@pytest.fixture
def api(fleet: Fleet) -> Api:
    """Make the application as if its workers ran on a second host that shares the storage."""
    fleet.settings = fleet.settings.model_copy(update={"storage_shared": True})
    return Api(fleet)


PROMPTS = [{"id": str(n), "prompt": f"prompt {n}"} for n in range(5)]


def made(api: Api, **spec: Any) -> str:
    """Create a rollout, and return its path."""
    reply = api.client.post("/v1/rollouts", json=spec)
    assert reply.status_code == 202, reply.text
    assert reply.headers["Location"] == f"/v1/rollouts/{reply.json['id']}"
    return str(reply.headers["Location"])


def put(api: Api, path: str, *samples: Any, **more: Any) -> Any:
    return api.client.post(f"{path}/samples", json={"samples": list(samples), **more})


def get(api: Api, path: str, query: str = "") -> dict[str, Any]:
    reply = api.client.get(f"{path}/samples?{query}")
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json
    return answer


def samples(batch: dict[str, Any]) -> list[Any]:
    return [sample for group in batch["groups"] for sample in group["samples"]]


def test_a_queue_without_generation_accepts_and_delivers_samples(api: Api) -> None:
    path = made(api, max_staleness=3, max_queue_size=4)
    assert put(api, path, {"a": 1}, param_version=1).json == {"put": 1, "queued": 1}
    stale = get(api, path, "current_version=5")
    assert (stale["batch"], stale["dropped"], stale["groups"]) == (None, 1, [])
    put(api, path, {"a": 2}, {"a": 3}, param_version=5, group_id="g", metadata={"why": "because"}, epoch=2)
    batch = get(api, path, "n=2&consumer=me&whole=true")
    assert batch["groups"][0]["metadata"] == {"why": "because"}
    assert (batch["samples"], samples(batch), batch["groups"][0]["group_id"]) == (2, [{"a": 2}, {"a": 3}], "g")
    settled = api.client.post(f"{path}/batches/{batch['batch']}/acknowledge").json
    assert settled == {"acknowledgement": "done", "samples": 2}
    told = api.client.get(f"{path}/statistics").json
    assert (told["total_produced"], told["total_consumed"], told["dropped_stale_samples"]) == (3, 2, 1)
    assert told["metrics"]["freshness/avg_sample_age"] == 0
    assert api.client.get(path).json["sync"] is None


def test_a_full_queue_refuses_a_put_and_a_waiting_put_succeeds_later(api: Api) -> None:
    path = made(api, max_queue_size=2)
    put(api, path, 1, 2)
    refused = put(api, path, 3)
    assert is_problem(refused, 409)
    assert refused.json["type"] == "urn:assay:queue_full"
    waiting = Thread(target=lambda: api.app.test_client().post(f"{path}/samples?wait=120", json={"samples": [3]}))
    waiting.start()
    assert samples(get(api, path, "n=2")) == [1, 2]
    waiting.join()
    assert samples(get(api, path)) == [3]


def test_a_get_waits_for_samples(api: Api) -> None:
    path = made(api)
    found: list[dict[str, Any]] = []
    waiting = Thread(target=lambda: found.append(api.app.test_client().get(f"{path}/samples?n=2&wait=120").json))
    waiting.start()
    put(api, path, 1)
    put(api, path, 2)
    waiting.join()
    assert samples(found[0]) == [1, 2]
    assert get(api, path, "wait=0.01")["batch"] is None


def test_a_put_with_a_key_is_idempotent(api: Api) -> None:
    path = made(api)
    for _ in range(2):
        api.client.post(f"{path}/samples", json={"samples": [1]}, headers={"Idempotency-Key": "k"})
    assert api.client.get(f"{path}/statistics").json["queue_size"] == 1


def test_creation_of_a_rollout_with_a_key_is_idempotent(api: Api) -> None:
    bodies = [{"max_queue_size": 5}, {"max_queue_size": 5}, {"max_queue_size": 6}]
    replies = [api.client.post("/v1/rollouts", json=body, headers={"Idempotency-Key": "k"}) for body in bodies]
    assert replies[0].json["id"] == replies[1].json["id"]
    assert is_problem(replies[2], 409)


def test_a_rollout_generates_samples_for_the_trainer(api: Api) -> None:
    hand = api.fleet.hire()
    path = made(api, **SIMULATED, prompts=PROMPTS, max_staleness=0, max_queue_size=40)
    hand.work()
    seen = []
    batch = ""
    for version in range(4):
        answer = get(api, path, f"n=8&whole=true&current_version={version}&consumer=t&acknowledge={batch}")
        seen += [group["index"] for group in answer["groups"]]
        batch = answer["batch"]
        assert answer["acknowledgement"] == ("done" if version else None)
        hand.work()
        assert api.client.get(f"{path}/statistics").json["queue_size"] == 0, "nothing is made for the next version yet"
        api.client.post(f"{path}/versions?version={version + 1}", data=b"w", content_type="application/octet-stream")
        hand.work()
    assert sorted(seen) == list(range(8))
    assert api.client.delete(path).json["job"]["state"] == "cancelled"


def test_prompts_may_come_as_lines(api: Api) -> None:
    boundary = "b"
    lines = "\n".join(f'{{"prompt": "{n}"}}' for n in range(3))
    head = '{"simulated": {}, "shuffle": false, "train_batch_size": 2}'
    parts = f'--b\r\nContent-Disposition: form-data; name="request"\r\n\r\n{head}\r\n--b\r\n'
    parts += f'Content-Disposition: form-data; name="items"\r\n\r\n{lines}\r\n--b--\r\n'
    content = f"multipart/form-data; boundary={boundary}"
    reply = api.client.post("/v1/rollouts", data=parts, content_type=content)
    assert reply.status_code == 202, reply.text
    api.fleet.hire().work()
    batch = get(api, reply.headers["Location"], "n=4")
    assert {group["item"]["prompt"] for group in batch["groups"]} <= {"0", "1", "2"}
    wrong = api.client.post("/v1/rollouts", data=parts.replace('"2"', "2"), content_type=content)
    assert is_problem(wrong, 422, "prompt")
    assert wrong.json["line"] == 3


def test_pause_answers_after_generation_stopped_and_resume_continues(api: Api) -> None:
    hand = api.fleet.hire()
    path = made(api, **SIMULATED, prompts=PROMPTS, max_queue_size=16)
    chunks = hand.take()
    assert chunks
    assert api.client.post(f"{path}/pause").json == {"paused": True, "holds": False, "generating": len(chunks)}
    answers: list[Any] = []
    waiting = Thread(target=lambda: answers.append(api.app.test_client().post(f"{path}/pause?wait=120").json))
    waiting.start()
    for chunk in chunks:
        hand.core.ledger.commit(chunk, hand.worker.name, 0.0, (), over=True)
    waiting.join()
    assert answers == [{"paused": True, "holds": True, "generating": 0}]
    hand.work()
    told = api.client.get(f"{path}/statistics").json
    assert (told["is_paused"], told["total_generated_samples"], told["pause_count"]) == (True, 0, 1)
    assert api.client.post(f"{path}/resume").json["paused"] is False
    hand.work()
    assert api.client.get(f"{path}/statistics").json["total_generated_samples"] > 0


def test_a_version_is_announced_by_uri_or_uploaded(api: Api) -> None:
    hand = api.fleet.hire()
    path = made(api, **SIMULATED, prompts=PROMPTS, max_queue_size=16)
    refused = api.client.post(f"{path}/versions", json={"version": 1, "uri": "file:///etc/passwd"})
    assert is_problem(refused, 422, "uri")
    weights = b"weights"
    reply = api.client.post(f"{path}/versions?version=1", data=weights, content_type="application/octet-stream")
    assert (reply.status_code, reply.json["state"]) == (200, "synced"), reply.text
    hand.work()
    told = api.client.get(f"{path}/versions").json
    assert (told["version"], told["state"], told["devices"]["gpu.node1.0"]["state"]) == (1, "synced", "following")
    sha256 = hashlib.sha256(b"other").hexdigest()
    wrong = api.client.post(
        f"{path}/versions?version=2&sha256={sha256}", data=weights, content_type="application/octet-stream"
    )
    assert is_problem(wrong, 422, "sha256")
    assert is_problem(api.client.post(f"{path}/versions", data=b"", content_type="application/octet-stream"), 422)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"simulated": {}}, "prompts"),
        ({"prompts": PROMPTS}, "prompts"),
        ({"model": "nothing", "prompts": PROMPTS}, "spec.model"),
        ({"staleness_threshold": 0.5}, None),
        ({"rule": "proportion"}, None),
        ({"simulated": {}, "prompts": PROMPTS, "max_queue_size": 3}, None),
        ({"rollout": "x"}, None),
        ({"prompts": [{"prompt": ""}]}, None),
        ({"reward": {"scorers": [{"name": "nothing"}]}}, None),
    ],
)
def test_invalid_requests_are_refused_with_a_reason(api: Api, spec: dict[str, Any], field: str | None) -> None:
    assert is_problem(api.client.post("/v1/rollouts", json=spec), 422, field)


def test_unknown_rollouts_are_404(api: Api) -> None:
    assert is_problem(api.client.get("/v1/rollouts/x"), 404)
    assert is_problem(api.client.get("/v1/rollouts/x/samples"), 404)
    job = api.submitted({"x": 1})
    assert is_problem(api.client.get(f"/v1/rollouts/{job}"), 404)
    assert is_problem(api.client.post("/v1/jobs", json={"kind": "rollout", "items": [{"prompt": "a"}]}), 422, "kind")


def test_a_named_reward_is_read_from_the_servers_file(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "rewards.toml").write_text('[rewards.a.spec]\nscorers = [{name = "exact_match"}]\n')
    fleet.settings = fleet.settings.model_copy(update={"rewards_file": tmp_path / "rewards.toml"})
    api = Api(fleet)
    rollout = made(api, reward_name="a").rpartition("/")[2]
    _, recipes = fleet.core.payloads.read_work((), [rollout])
    assert recipes[rollout].spec["reward"]["scorers"][0]["name"] == "exact_match"
    assert is_problem(api.client.post("/v1/rollouts", json={"reward_name": "b"}), 422)


def test_requests_that_the_state_forbids_are_conflicts(api: Api) -> None:
    alone = made(api)
    weights = {"data": b"w", "content_type": "application/octet-stream"}
    assert is_problem(api.client.post(f"{alone}/versions?version=1", **weights), 409)
    over = made(api, **SIMULATED, prompts=PROMPTS)
    api.client.delete(over)
    assert is_problem(api.client.post(f"{over}/versions?version=1", **weights), 409)
    assert is_problem(api.client.post(f"{over}/pause"), 409)
    assert is_problem(put(api, over, 1), 409)
