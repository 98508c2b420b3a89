"""Overview of the system, on a real Redis: the snapshot of jobs, queues, workers and rates, and its event stream."""

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
    """Build a new snapshot for every request."""
    monkeypatch.setattr(module, "FRESH_S", 0.0)


def glance(api: Api) -> dict[str, Any]:
    reply = api.client.get("/v1/overview")
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json
    return told


def test_the_overview_of_an_empty_system_lists_missing_pools(api: Api) -> None:
    told = glance(api)
    assert told["missing"] == ["no device worker is ready", "no api worker is ready", "no cpu worker is ready"]
    assert (told["ready"], told["jobs"], told["devices"], told["rate"]) == (False, [], [], 0)


@pytest.mark.usefixtures("at_once")
def test_the_overview_has_waiting_running_and_finished_items(api: Api, fleet: Fleet) -> None:
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


def test_active_jobs_are_shown_before_any_number_of_later_ended_jobs(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    old = api.submitted({"x": 1}, priority="bulk")
    for number in range(20):
        cancelled = api.submitted({"x": number})
        api.client.delete(f"/v1/jobs/{cancelled}")
    told = glance(api)
    assert told["jobs"][0]["id"] == old, "the waiting job comes first"
    assert len(told["jobs"]) == 13
    assert told["recent"]["states"] == {"queued": 1, "cancelled": 20}
    assert hand


@pytest.mark.usefixtures("at_once")
def test_jobs_of_a_benchmark_run_are_only_in_the_list_of_every_job(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    mine = api.done(hand, {"x": 1}, metadata={"benchmark": "mmlu"})
    fleet.hire("cpu")
    run = Runs(fleet.core, load_profiles(fleet.settings)).start("rule_scoring", RunOptions())
    glance(api)
    parts = [api.submitted({"x": number}, metadata={"benchmark": run.id}) for number in range(20)]
    waiting = glance(api)
    assert [job["id"] for job in waiting["jobs"]] == [run.job, mine], (
        "the run's own job, and a user's job with the metadata field benchmark"
    )
    assert waiting["jobs"][0]["metadata"]["name"] == "rule_scoring"
    fleet.work(hand)
    told = glance(api)
    assert [job["id"] for job in told["jobs"]] == [run.job, mine]
    assert told["rate"] > 0, "jobs of a benchmark count in the rate"
    listed = {job["id"] for job in api.client.get("/v1/jobs?limit=50").json["jobs"]}
    assert listed == {run.job, mine, *parts}


def test_cache_hits_and_failures_are_counted_over_recent_jobs(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    for _ in range(2):
        api.done(hand, {"x": 1}, {"x": 2}, {"x": 3, "fail": True}, spec={"cacheable": True})
    recent = glance(api)["recent"]
    assert (recent["jobs"], recent["items"], recent["failed"], recent["hits"]) == (2, 6, 2, 2)
    assert recent["reasons"] == {"simulated_failure": 2}
    assert recent["calls_saved"] == 0, "no recent job calls an API"


def test_the_clients_of_a_process_share_a_snapshot(api: Api, state: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 3600.0)
    first = glance(api)
    state.sadd(keys.workers(), "somebody")
    assert glance(api) == first, "the snapshot is not old enough to be built again"


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


def test_a_stream_sends_snapshots_until_its_time_limit(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.1)
    fleet.settings = fleet.settings.model_copy(update={"max_wait_s": 5.0})
    api = Api(fleet)
    told = list(events(api))
    assert [name for name, _ in told] == ["snapshot"] * len(told)
    assert len({snapshot["at"] for _, snapshot in told}) == len(told) >= 2
    long_requests = api.app.extensions["assay"].long_requests
    assert all(long_requests.take() for _ in range(long_requests.total)), "the stream released its long request"
    assert is_problem(api.client.get("/v1/overview/events"), 503)
    assert api.client.get("/v1/overview").status_code == 200, "a single snapshot takes no long request"


def test_without_redis_the_stream_sends_the_error_and_pages_are_served() -> None:
    client = create_app(Settings(redis_url=NOWHERE, max_wait_s=0)).test_client()
    assert is_problem(client.get("/v1/overview"), 503)
    text = client.get("/v1/overview/events").text
    assert "event: trouble" in text
    assert "does not answer" in text
    for path in ("/", "/jobs", f"/jobs/{'0' * 32}", "/submit", "/benchmarks"):
        assert client.get(path).status_code == 200
