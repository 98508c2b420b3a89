"""Everything at a glance, on a real Redis, and the stream of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from config import keys
from config.profiles import load_profiles
from config.settings import Settings
from tasks.deployment_benchmarks.model import RunOptions
from tasks.deployment_benchmarks.runs import Runs
from tests.conftest import NOWHERE
from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet
from tests.support.programs import wait_until
from web.app import create_app
from web.overview import views as module


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look is a new one."""
    monkeypatch.setattr(module, "FRESH_S", 0.0)


def glance(api: Api) -> dict[str, Any]:
    reply = api.client.get("/v1/overview")
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json
    return told


def test_an_empty_system_says_what_is_missing(api: Api) -> None:
    told = glance(api)
    assert told["missing"] == ["no device worker is ready", "no api worker is ready", "no cpu worker is ready"]
    assert (told["ready"], told["jobs"], told["devices"], told["rate"]) == (False, [], [], 0)


@pytest.mark.usefixtures("at_once")
def test_what_waits_what_runs_and_what_was_done_is_there(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    fleet.hire("cpu"), fleet.hire("api")
    job = api.submitted(*({"x": number} for number in range(900)), spec={"cost_s": 0.0001, "batch_items": 100})
    before = glance(api)
    (queue,) = (row for row in before["queues"] if row["queue"] == "gpu.node1.0")
    (pool,) = (row for row in before["pools"] if row["pool"] == "device")
    assert before["ready"]
    assert queue["items"] + pool["items"] == 900
    assert queue["oldest_s"] >= 0
    assert [row["id"] for row in before["jobs"]] == [job]
    chunks = hand.take()
    during = {row["queue"]: row for row in glance(api)["queues"]}["gpu.node1.0"]
    assert during["running"] == len(chunks) > 0
    wait_until(lambda: not fleet.finish_step(api.submitted({"x": 1}), hand), "a job ends")
    after = glance(api)
    assert after["rate"] > 0
    assert after["devices"][0]["rate"] == after["rate"]


def test_active_jobs_are_shown_however_many_came_after_them(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    old = api.submitted({"x": 1}, priority="bulk")
    for number in range(20):
        cancelled = api.submitted({"x": number})
        api.client.delete(f"/v1/jobs/{cancelled}")
    told = glance(api)
    assert told["jobs"][0]["id"] == old, "it waits, and comes first"
    assert len(told["jobs"]) == 13
    assert told["recent"]["states"] == {"queued": 1, "cancelled": 20}
    assert hand


@pytest.mark.usefixtures("at_once")
def test_what_a_benchmark_submits_is_left_to_the_list_of_all_jobs(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    mine = api.done(hand, {"x": 1}, metadata={"benchmark": "mmlu"})
    fleet.hire("cpu")
    run = Runs(fleet.core, load_profiles(fleet.settings)).start("rule_scoring", RunOptions())
    glance(api)
    parts = [api.submitted({"x": number}, metadata={"benchmark": run.id}) for number in range(20)]
    waiting = glance(api)
    assert [job["id"] for job in waiting["jobs"]] == [run.job, mine], "the run, and what others call a benchmark"
    assert waiting["jobs"][0]["metadata"]["name"] == "rule_scoring"
    fleet.work(hand)
    told = glance(api)
    assert [job["id"] for job in told["jobs"]] == [run.job, mine]
    assert told["rate"] > 0, "they are work all the same"
    listed = {job["id"] for job in api.client.get("/v1/jobs?limit=50").json["jobs"]}
    assert listed == {run.job, mine, *parts}


def test_the_cache_and_what_failed_are_counted_over_recent_jobs(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    for _ in range(2):
        api.done(hand, {"x": 1}, {"x": 2}, {"x": 3, "fail": True}, spec={"cacheable": True})
    recent = glance(api)["recent"]
    assert (recent["jobs"], recent["items"], recent["failed"], recent["hits"]) == (2, 6, 2, 2)
    assert recent["reasons"] == {"simulated_failure": 2}
    assert recent["calls_saved"] == 0, "none of them asks an API"


def test_the_clients_of_one_process_share_a_snapshot(api: Api, state: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 3600.0)
    first = glance(api)
    state.sadd(keys.workers(), "somebody")
    assert glance(api) == first, "it is not old enough to be made anew"


def events(api: Api) -> Iterator[tuple[str, dict[str, Any]]]:
    stream = api.client.get("/v1/overview/events", buffered=False)
    assert stream.mimetype == "text/event-stream"
    text = ""
    for piece in stream.response:
        text += piece.decode() if isinstance(piece, bytes) else piece
        *blocks, text = text.split("\n\n")
        for block in blocks:
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            if "event" in fields:
                yield fields["event"], json.loads(fields["data"])
    stream.close()


def test_a_stream_tells_a_snapshot_after_the_other_and_ends_in_time(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.1)
    fleet.settings = fleet.settings.model_copy(update={"max_wait_s": 5.0})
    api = Api(fleet)
    told = list(events(api))
    assert [name for name, _ in told] == ["snapshot"] * len(told)
    assert len({snapshot["at"] for _, snapshot in told}) == len(told) >= 2
    long_requests = api.app.extensions["assay"].long_requests
    assert all(long_requests.take() for _ in range(long_requests.total)), "it gave its seat back"
    assert is_problem(api.client.get("/v1/overview/events"), 503)
    assert api.client.get("/v1/overview").status_code == 200, "which takes no seat"


def test_without_redis_the_stream_tells_of_the_trouble_and_the_page_is_there() -> None:
    client = create_app(Settings(redis_url=NOWHERE, max_wait_s=0)).test_client()
    assert is_problem(client.get("/v1/overview"), 503)
    text = client.get("/v1/overview/events").text
    assert "event: trouble" in text
    assert "does not answer" in text
    for path in ("/", "/jobs", f"/jobs/{'0' * 32}", "/submit", "/benchmarks"):
        assert client.get(path).status_code == 200
