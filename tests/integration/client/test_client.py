"""The client against a fake server on the network: its guarantees in normal operation and after faults."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from assay import (
    ApiError,
    Assay,
    AsyncAssay,
    Calibration,
    Conflict,
    ConnectionFailed,
    InvalidRequest,
    QuotaExceeded,
    Retry,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedReply,
    WaitTimeout,
)

from tests.conftest import ROOT
from tests.support import client_scenarios
from tests.support.client_scenarios import ITEMS, RETRY
from tests.support.programs import PATIENCE_S, wait_until
from tests.support.wire_server import WireServer


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer() as server:
        yield server


@pytest.fixture
def client(server: WireServer) -> Iterator[Assay]:
    with Assay(server.url, retry=RETRY) as client:
        yield client


@pytest.mark.parametrize(
    "scenario",
    [
        client_scenarios.submit_wait_and_read,
        client_scenarios.wait_in_the_submit,
        client_scenarios.stream_a_large_job,
        client_scenarios.find_the_same_job_by_its_key,
        client_scenarios.be_refused,
    ],
)
def test_scenario(server: WireServer, scenario: object) -> None:
    scenario(server.url)  # type: ignore[operator]


def test_asyncio_scenario(server: WireServer) -> None:
    asyncio.run(client_scenarios.do_the_same_with_asyncio(server.url))


def test_a_job_is_cancelled(server: WireServer) -> None:
    server.held = True
    client_scenarios.cancel_a_long_job(server.url)


def test_the_example_prints_a_reward_per_answer(server: WireServer) -> None:
    environment = os.environ | {"ASSAY_URL": server.url, "PYTHONPATH": str(ROOT / "client/src")}
    argv = [sys.executable, str(ROOT / "examples/score.py")]
    run = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["0.00"] * 4
    assert server.keys == {"example-1": "job-0"}


# Lost connections


def test_a_submit_retried_after_a_lost_response_returns_the_same_job(server: WireServer, client: Assay) -> None:
    server.fault("POST /v1/jobs", "drop", times=2)
    job = client.score([{"id": "a", "x": 1}], "numeric_match")
    keys = [seen.headers["idempotency-key"] for seen in server.requests("POST /v1/jobs")]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert list(server.jobs) == [job.id]


def test_two_submits_are_two_jobs(client: Assay) -> None:
    assert client.score(ITEMS, "a").id != client.score(ITEMS, "a").id


@pytest.mark.parametrize("source", ["generator", "file", "list"])
def test_a_streamed_upload_is_retried_from_its_start(
    server: WireServer, client: Assay, source: str, tmp_path: Path
) -> None:
    items = [{"id": str(n), "x": n} for n in range(6_000)]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    server.fault("POST /v1/jobs", "drop")
    given = {"generator": (item for item in items), "file": path, "list": items}[source]
    job = client.submit("simulated", given)  # type: ignore[arg-type]
    first, second = server.requests("POST /v1/jobs")
    assert first.body == second.body
    assert first.headers["content-type"] == "application/x-ndjson"
    assert list(server.jobs) == [job.id]
    assert server.jobs[job.id].items == items


@pytest.mark.parametrize("kind", ["cut", "end"])
def test_a_stream_cut_in_the_middle_neither_repeats_nor_loses_a_row(
    server: WireServer, client: Assay, kind: str
) -> None:
    job = client.submit("simulated", ITEMS)
    server.fault("GET /v1/jobs/job-0/results", kind, rows=7, times=3)
    assert [row.index for row in job.results()] == list(range(40))
    assert [seen.query["start"] for seen in server.requests("GET /v1/jobs/job-0/results")] == ["0", "7", "14", "21"]


def test_rows_that_a_server_sends_twice_are_dropped(server: WireServer, client: Assay) -> None:
    job = client.submit("simulated", ITEMS)
    server.fault("GET /v1/jobs/job-0/results", "rewind", times=5)
    server.fault("GET /v1/jobs/job-0/results", "cut", rows=7)
    assert [row.index for row in job.results()] == list(range(40))


def test_a_cut_stream_is_resumed_with_asyncio_too(server: WireServer) -> None:
    async def read() -> list[int]:
        async with AsyncAssay(server.url, retry=RETRY) as client:
            server.fault("POST /v1/jobs", "drop")
            job = await client.submit("simulated", ITEMS)
            server.fault("GET /v1/jobs/job-0/results", "cut", rows=7, times=3)
            return [row.index async for row in job.results()]

    assert asyncio.run(read()) == list(range(40))
    assert len(server.jobs) == 1


def test_a_stream_without_progress_is_given_up(server: WireServer) -> None:
    with Assay(server.url, retry=Retry(0.2, 0.01, 0.05)) as client:
        job = client.submit("simulated", ITEMS)
        server.fault("GET /v1/jobs/job-0/results", "cut", rows=0, times=1000)
        with pytest.raises(ConnectionFailed):
            list(job.results())


def test_a_row_limit_holds_after_a_lost_connection(server: WireServer, client: Assay) -> None:
    job = client.submit("simulated", ITEMS)
    server.fault("GET /v1/jobs/job-0/results", "cut", rows=3)
    assert [row.index for row in job.results(start=10, limit=6)] == list(range(10, 16))


def test_waiting_goes_on_after_the_event_stream_was_cut(server: WireServer, client: Assay) -> None:
    server.held = True
    job = client.submit("simulated", ITEMS)
    server.fault("GET /v1/jobs/job-0/events", "cut", times=2)
    threading.Thread(
        target=lambda: (
            wait_until(lambda: len(server.requests("GET /v1/jobs/job-0/events")) == 3, "x"),
            server.release(),
        )
    ).start()
    assert job.wait(PATIENCE_S).state == "done"
    resumed = [seen.headers.get("last-event-id") for seen in server.requests("GET /v1/jobs/job-0/events")]
    assert resumed == [None, "1", "2"]


def test_waiting_polls_if_there_are_no_events(server: WireServer, client: Assay) -> None:
    server.held, server.events = True, False
    job = client.submit("simulated", ITEMS)
    threading.Timer(0.3, server.release).start()
    assert job.wait(PATIENCE_S).state == "done"


def test_concurrent_waits_use_at_most_four_event_streams(server: WireServer) -> None:
    """An open stream occupies a thread of the server."""
    server.held = True

    async def wait_for_many() -> list[str]:
        async with AsyncAssay(server.url, retry=RETRY) as client:
            jobs = [await client.submit("simulated", ITEMS) for _ in range(20)]
            waits = [asyncio.create_task(job.wait()) for job in jobs]
            while any(len(server.requests(f"GET /v1/jobs/job-{n}")) < 2 for n in range(20)):
                await asyncio.sleep(0.02)
            assert server.open_streams == 4
            server.release()
            return [job.state for job in await asyncio.gather(*waits)]

    assert asyncio.run(wait_for_many()) == ["done"] * 20


def test_waiting_sees_progress(server: WireServer, client: Assay) -> None:
    server.held = True
    job = client.submit("simulated", ITEMS)
    seen = []
    for view in job.watch():
        seen.append(view.settled)
        if not view.ended:
            server.settle(server.jobs[job.id], 20)
    assert seen[0] == 0
    assert seen[-1] == 40
    assert seen == sorted(seen)


@pytest.mark.parametrize("events", [True, False])
def test_a_wait_that_times_out_says_how_to_wait_again(server: WireServer, client: Assay, events: bool) -> None:
    server.held, server.events = True, events
    job = client.submit("simulated", ITEMS)
    with pytest.raises(WaitTimeout, match=r"client\.job\('job-0'\)\.wait\(\)") as raised:
        job.wait(timeout_s=0.3)
    assert raised.value.job.state == "running"
    assert isinstance(raised.value, TimeoutError)


def test_a_retry_of_failed_items_is_not_sent_again_after_a_lost_response(server: WireServer, client: Assay) -> None:
    job = client.submit("simulated", ITEMS)
    server.fault("POST /v1/jobs/job-0/retry", "drop", times=9)
    with pytest.raises(ConnectionFailed, match="may have been carried out"):
        job.retry()
    assert len(server.requests("POST /v1/jobs/job-0/retry")) == 1


def test_a_closed_iterator_releases_its_connection(server: WireServer, client: Assay) -> None:
    server.held = True
    watching = client.submit("simulated", ITEMS * 100).watch()
    next(watching)
    next(watching)
    assert server.open_streams == 1
    watching.close()  # type: ignore[attr-defined]
    stored = server.jobs["job-0"]

    def is_noticed() -> bool:
        server.settle(stored, 1)  # the server detects a closed connection only when it writes
        return server.open_streams == 0

    wait_until(is_noticed, "the stream to be closed")
    assert stored.view["state"] == "running"


# Busy servers and error responses


def test_a_busy_server_is_retried_after_its_retry_after(server: WireServer, client: Assay) -> None:
    server.fault("POST /v1/jobs", "503", retry_after="1")
    server.fault("POST /v1/jobs", "429", retry_after="0")
    server.fault("POST /v1/jobs", "502")
    started = time.monotonic()
    client.submit("simulated", ITEMS)
    assert time.monotonic() - started >= 1
    assert len(server.requests("POST /v1/jobs")) == 4


def test_a_retry_after_beyond_the_limit_gives_up_immediately(server: WireServer, client: Assay) -> None:
    server.fault("POST /v1/jobs", "429", retry_after="3600")
    with pytest.raises(QuotaExceeded) as raised:
        client.submit("simulated", ITEMS)
    assert raised.value.retry_after_s == 3600
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Unauthorized), (409, Conflict), (413, TooLarge), (422, InvalidRequest), (500, ApiError), (302, ApiError)],
)
def test_an_error_response_raises_a_typed_error_without_retry(
    server: WireServer, client: Assay, status: int, kind: type[ApiError]
) -> None:
    server.fault("POST /v1/jobs", str(status))
    with pytest.raises(kind) as raised:
        client.submit("simulated", ITEMS)
    assert raised.value.status == status
    assert "as the test asked" in str(raised.value)
    assert len(server.seen) == 1


def test_an_unreachable_server_is_a_connection_failure() -> None:
    with Assay("http://127.0.0.1:9", retry=Retry(0.1, 0.01, 0.05)) as client, pytest.raises(ConnectionFailed) as raised:
        client.queues()
    assert isinstance(raised.value, ConnectionError)


def test_a_server_that_stays_unavailable_raises_unavailable(server: WireServer) -> None:
    server.fault("GET /v1/queues", "503", times=1000)
    with Assay(server.url, retry=Retry(0.1, 0.01, 0.05)) as client, pytest.raises(Unavailable):
        client.queues()


def test_a_response_of_a_different_server_raises_an_error(server: WireServer, client: Assay) -> None:
    server.lists["queues"] = "hello"  # type: ignore[assignment]
    with pytest.raises(UnexpectedReply):
        client.queues()


def test_a_calibration_is_typed_and_undefined_measures_are_none(server: WireServer, client: Assay) -> None:
    server.calibration = {"total": 40, "n": 30, "kappa": None, "agreement": 0.5, "length": {"with_score": None}}
    job = client.judge(ITEMS, profile="main")
    found = job.calibration()
    assert (found.job, found.state, found.n, found.agreement, found.kappa) == (job.id, "done", 30, 0.5, None)

    async def with_asyncio() -> Calibration:
        async with AsyncAssay(server.url, retry=RETRY) as other:
            return await (await other.job(job.id)).calibration()

    assert asyncio.run(with_asyncio()) == found
    server.calibration = {}
    with pytest.raises(Conflict, match="No item of the job has a label"):
        job.calibration()


# Contents of requests


def test_url_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with WireServer(token="s3cret") as server:
        monkeypatch.setenv("ASSAY_URL", server.url + "/")
        with Assay(retry=RETRY) as client, pytest.raises(Unauthorized):
            client.queues()
        monkeypatch.setenv("ASSAY_TOKEN", "s3cret")
        with Assay(retry=RETRY) as client:
            assert client.queues() == []


def test_each_kind_sends_its_spec(server: WireServer, client: Assay) -> None:
    client.score(ITEMS, ["format", {"name": "numeric_match", "weight": 2}], on_error={"fill": 0.0}, priority="bulk")
    client.judge(ITEMS, profile="fast", rubric="helpful")
    client.infer(ITEMS, model="tiny", spec={"max_tokens": 5})
    score, judge, infer = [json.loads(seen.body) for seen in server.requests("POST /v1/jobs")]
    assert score["spec"] == {"scorers": [{"name": "format"}, {"name": "numeric_match", "weight": 2}]}
    assert (score["on_error"], score["priority"]) == ({"fill": 0.0}, "bulk")
    assert (judge["kind"], judge["spec"]) == ("judge", {"profile": "fast", "rubric": "helpful"})
    assert (infer["kind"], infer["spec"]) == ("inference", {"model": "tiny", "max_tokens": 5})


def test_a_compressed_file_is_sent_unchanged(server: WireServer, client: Assay, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id":"a","x":1}\n'))
    job = client.submit("simulated", str(path), {"cost_s": 1}, deadline_s=5)
    (seen,) = server.requests("POST /v1/jobs")
    assert (seen.headers["content-encoding"], seen.query["spec"]) == ("gzip", '{"cost_s":1}')
    assert seen.query["deadline_s"] == "5"
    assert server.jobs[job.id].items == [{"id": "a", "x": 1}]


def test_a_spec_too_long_for_a_url_is_sent_in_a_separate_part(server: WireServer, client: Assay) -> None:
    rubric = "Be kind. " * 1000
    items = [{"id": "ä", "x": 1}, {"id": "b", "x": 2}]
    job = client.judge(iter(items), rubric=rubric)
    (seen,) = server.requests("POST /v1/jobs")
    assert seen.headers["content-type"].startswith("multipart/form-data")
    assert not seen.query
    assert server.jobs[job.id].items == items
    assert rubric.encode() in seen.body


def test_the_error_for_an_invalid_line_has_its_number(client: Assay, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text('{"id":"a"}\nnot json\n')
    with pytest.raises(InvalidRequest, match="Line 2") as raised:
        client.submit("simulated", path)
    assert raised.value.field == "items"


def test_results_in_the_submit_response_are_not_requested_again(server: WireServer, client: Assay) -> None:
    job = client.submit("simulated", ITEMS, wait_s=5)
    assert len(list(job.results())) == 40
    assert [seen.method for seen in server.seen] == ["POST"]


def test_a_list_of_many_jobs_is_read_in_pages(server: WireServer, client: Assay) -> None:
    for _ in range(120):
        server.submit("simulated", [], "")
    assert len(list(client.jobs())) == 120
    assert len(list(client.jobs(limit=70))) == 70
