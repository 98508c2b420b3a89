"""Jobs over HTTP: submit, read, list, cancel, retry and pause."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from config import keys
from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet
from tests.support.programs import wait_until


def test_the_answer_to_a_submit_has_the_job_and_its_url(api: Api) -> None:
    reply = api.submit({"x": 1}, {"x": 2}, metadata={"run": "a"})
    assert reply.status_code == 202
    job = reply.json
    assert reply.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert (job["state"], job["total"], job["ok"], job["metadata"]) == ("queued", 2, 0, {"run": "a"})
    assert api.client.get(reply.headers["Location"]).json["id"] == job["id"]
    assert "results" not in job


def test_results_that_are_ready_in_time_are_in_the_answer(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()

    def work_when_submitted() -> None:
        wait_until(lambda: fleet.core.state.zcard(keys.jobs()), "the job is there")
        fleet.work(hand)

    worker = threading.Thread(target=work_when_submitted)
    worker.start()
    reply = api.submit({"id": "a", "x": 1}, {"id": "b", "x": 2, "fail": True}, query="?wait=120")
    worker.join()
    assert reply.status_code == 200
    assert [(row["id"], row["status"], row["valid"]) for row in reply.json["results"]] == [
        ("a", "ok", True),
        ("b", "failed", False),
    ]
    assert reply.json["reasons"] == {"simulated_failure": 1}


def test_a_job_that_is_not_ready_in_time_is_answered_without_results(api: Api) -> None:
    reply = api.submit({"x": 1}, query="?wait=0.2")
    assert reply.status_code == 202
    assert "results" not in reply.json


def test_the_number_of_waiting_submits_is_limited(api: Api, fleet: Fleet) -> None:
    long_requests = api.app.extensions["assay"].long_requests.total
    every_one = threading.Barrier(long_requests + 1)

    def ask(number: int) -> tuple[int, Any]:
        every_one.wait()
        body = {"kind": "simulated", "items": [{"x": number}]}
        reply = api.app.test_client().post("/v1/jobs?wait=120", json=body)
        return reply.status_code, reply.json

    with ThreadPoolExecutor(long_requests) as pool:
        asked = pool.map(ask, range(long_requests))
        every_one.wait()
        wait_until(lambda: fleet.core.state.zcard("assay:jobs") == long_requests, "all are there")
        fleet.work(fleet.hire())
        answers = list(asked)
    assert [status for status, _ in answers] == [200] * long_requests


def test_a_fully_cached_job_is_done_in_the_answer_to_its_submit(api: Api, fleet: Fleet) -> None:
    api.done(fleet.hire(), {"x": 1}, spec={"cacheable": True})
    reply = api.submit({"x": 1}, spec={"cacheable": True})
    assert (reply.status_code, reply.json["state"], reply.json["cached"]) == (200, "done", 1)
    assert reply.json["results"][0]["cached"] is True


def test_a_repeat_with_the_same_key_is_the_same_job(api: Api) -> None:
    body = {"kind": "simulated", "items": [{"x": 1}]}
    first, again = (api.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"}) for _ in range(2))
    assert first.json["id"] == again.json["id"]
    other = api.client.post("/v1/jobs", json=body | {"items": [{"x": 2}]}, headers={"Idempotency-Key": "k1"})
    assert is_problem(other, 409)


@pytest.mark.parametrize("key", ["", "two words", "ü", "k" * 201, "a\tb"])
def test_an_idempotency_key_must_be_short_and_visible(api: Api, key: str) -> None:
    reply = api.client.post(
        "/v1/jobs",
        json={"kind": "simulated", "items": [{}]},
        headers={"Idempotency-Key": key.encode().decode("latin1")},
    )
    assert is_problem(reply, 422, "Idempotency-Key")


def test_jobs_are_listed_newest_first_page_by_page(api: Api) -> None:
    jobs = [api.submitted({"x": number}) for number in range(7)]
    seen: list[str] = []
    query = "?limit=3"
    while query:
        page = api.client.get(f"/v1/jobs{query}").json
        seen += [job["id"] for job in page["jobs"]]
        query = f"?limit=3&cursor={page['next']}" if page["next"] else ""
    assert seen == jobs[::-1]


def test_jobs_are_listed_by_kind_and_state(api: Api, fleet: Fleet) -> None:
    done = api.done(fleet.hire(), {"x": 1})
    cancelled = api.submitted({"x": 2})
    api.client.delete(f"/v1/jobs/{cancelled}")
    assert [job["id"] for job in api.client.get("/v1/jobs?state=done").json["jobs"]] == [done]
    assert [job["id"] for job in api.client.get("/v1/jobs?state=cancelled&kind=simulated").json["jobs"]] == [cancelled]
    assert api.client.get("/v1/jobs?kind=judge").json == {"jobs": [], "next": None}


def test_a_filter_looks_at_a_bounded_number_of_jobs(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.jobs.queries.listing.MOST_LOOKED_AT", 3)
    jobs = [api.submitted({"x": number}) for number in range(5)]
    first = api.client.get("/v1/jobs?state=done").json
    assert first["jobs"] == []
    assert jobs[2] in first["next"]
    assert api.client.get(f"/v1/jobs?state=done&cursor={first['next']}").json["next"] is None


def test_a_cancelled_job_stays_cancelled(api: Api, fleet: Fleet) -> None:
    job = api.submitted({"x": 1})
    for _ in range(2):
        reply = api.client.delete(f"/v1/jobs/{job}")
        assert (reply.status_code, reply.json["state"]) == (200, "cancelled")
    fleet.work(fleet.hire())
    assert [row["status"] for row in api.client.get(f"/v1/jobs/{job}/results").json["results"]] == ["cancelled"]


def test_failed_items_run_again_on_retry(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    job = api.done(hand, {"x": 1, "fail": True}, {"x": 2})
    reply = api.client.post(f"/v1/jobs/{job}/retry")
    assert (reply.status_code, reply.json["retried"], reply.json["epoch"]) == (200, 1, 1)
    assert is_problem(api.client.post(f"/v1/jobs/{job}/retry"), 409)


def test_a_job_that_stands_still_is_repaired(api: Api, fleet: Fleet) -> None:
    job = api.submitted({"x": 1}, {"x": 2})
    stage = str(fleet.core.store.stages(job)[0]["name"])
    fleet.core.state.delete(keys.job_pending(job, stage))  # a fault that no script causes
    hand = fleet.hire()
    reply = api.client.post(f"/v1/jobs/{job}/repair")
    assert (reply.status_code, reply.json["id"], reply.json["repaired"]) == (200, job, 2)
    assert fleet.finish(job, hand).ok == 2
    assert api.client.post(f"/v1/jobs/{job}/repair").json["repaired"] == 0
    assert is_problem(api.client.post("/v1/jobs/none/repair"), 404)


def test_a_paused_job_waits_until_it_is_resumed(api: Api, fleet: Fleet) -> None:
    hand, job = fleet.hire(), api.submitted({"x": 1})
    assert api.client.post(f"/v1/jobs/{job}/pause").json["paused"] is True
    fleet.work(hand)
    assert api.client.get(f"/v1/jobs/{job}").json["ok"] == 0
    assert api.client.post(f"/v1/jobs/{job}/resume").json["paused"] is False
    fleet.work(hand)
    assert api.client.get(f"/v1/jobs/{job}").json["state"] == "done"
    assert is_problem(api.client.post(f"/v1/jobs/{job}/pause"), 409)


def test_a_job_lists_its_items_per_worker(api: Api, fleet: Fleet) -> None:
    job = api.done(fleet.hire(), {"x": 1}, {"x": 2})
    view = api.client.get(f"/v1/jobs/{job}").json
    assert view["workers"]["gpu.node1.0"]["items"] == 2
    assert view["rate"] > 0


@pytest.mark.parametrize("job", ["0" * 32, "nope", "0" * 31 + ":", "a:blocks", "%00", "..%2f..%2fetc", "x" * 3000])
def test_an_unknown_job_is_404_whatever_it_is_called(api: Api, job: str) -> None:
    calls = (("GET", ""), ("DELETE", ""), ("GET", "/results"), ("POST", "/retry"), ("POST", "/pause"))
    for method, path in calls:
        assert is_problem(api.client.open(f"/v1/jobs/{job}{path}", method=method), 404)


@pytest.mark.parametrize("part", ["blocks", "events", "outcomes", "passed:run"])
def test_keys_that_belong_to_a_job_are_not_job_ids(api: Api, part: str) -> None:
    job = api.submitted({"x": 1})
    assert is_problem(api.client.get(f"/v1/jobs/{job}:{part}"), 404)


def test_a_full_backlog_refuses_jobs_until_it_has_room(fleet: Fleet) -> None:
    fleet.settings = fleet.settings.model_copy(update={"backlog_items": 3})
    api = Api(fleet)
    api.submitted(*({"x": number} for number in range(4)))
    reply = api.submit({"x": 9})
    assert is_problem(reply, 503)
    assert reply.headers["Retry-After"] == "5"
    assert len(api.client.get("/v1/jobs").json["jobs"]) == 1
