"""Server-sent events of a job, read in process: replay, resume, and a snapshot if earlier events were trimmed."""

import json
import threading
from typing import Any

import pytest
from redis import Redis

from config import keys
from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet
from tests.support.programs import wait_until


def parse(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (id, event, data) of each event."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


def watch(api: Api, job: str, last: str = "") -> list[tuple[str, str, dict[str, Any]]]:
    reply = api.client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": last} if last else {})
    assert reply.mimetype == "text/event-stream"
    return parse(reply.text)


def test_the_stream_of_an_ended_job_replays_its_events(api: Api, fleet: Fleet) -> None:
    job = api.done(fleet.hire(), {"x": 1}, {"x": 2, "fail": True})
    told = watch(api, job)
    assert (told[0][1], told[-1][1]) == ("queued", "done")
    assert told[-1][2] | {"at": 0} == {"ok": 1, "failed": 1, "total": 2, "reason": "", "at": 0}


def test_the_stream_of_a_running_job_follows_its_events(api: Api, fleet: Fleet) -> None:
    job, hand = api.submitted({"x": 1}), fleet.hire()

    def work() -> None:
        wait_until(lambda: api.app.extensions["assay"].event_hub.watched, "the stream is open")
        api.fleet.work(hand)

    worker = threading.Thread(target=work)
    worker.start()
    told = [event for _, event, _ in watch(api, job)]
    worker.join()
    assert (told[0], told[-1]) == ("queued", "done")
    assert api.app.extensions["assay"].event_hub.watched == 0


def test_a_client_resumes_after_the_last_event_it_saw(api: Api, fleet: Fleet) -> None:
    job = api.done(fleet.hire(), {"x": 1})
    told = watch(api, job)
    assert watch(api, job, told[0][0]) == told[1:]


def test_a_client_that_has_seen_the_last_event_gets_204(api: Api, fleet: Fleet) -> None:
    job = api.done(fleet.hire(), {"x": 1})
    last = watch(api, job)[-1][0]
    assert api.client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": last}).status_code == 204


def test_a_client_gets_a_snapshot_if_its_next_events_were_trimmed(api: Api, fleet: Fleet, state: Redis) -> None:
    job = api.done(fleet.hire(), {"x": 1})
    first = watch(api, job)[0][0]
    state.xtrim(keys.job_events(job), maxlen=1, approximate=False)
    (_, event, data), (_, end, _) = watch(api, job, first)
    assert (event, data["state"], data["ok"], end) == ("snapshot", "done", 1, "done")
    assert watch(api, job)[0][1] == "snapshot"
    assert watch(api, job, "99999999999999-0")[0][1] == "snapshot"


def test_a_client_gets_a_snapshot_and_the_end_once_the_events_have_expired(
    api: Api, fleet: Fleet, state: Redis
) -> None:
    job = api.done(fleet.hire(), {"x": 1})
    told = watch(api, job)
    state.delete(keys.job_events(job))
    for last in ("", told[0][0]):
        (_, event, data), (_, end, counts) = watch(api, job, last)
        assert (event, data["state"], end, counts["ok"], counts["total"]) == ("snapshot", "done", "done", 1, 1)
    for seen in (told[-1][0], "99999999999999-0"):
        assert api.client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": seen}).status_code == 204


def test_the_events_of_a_retried_job_are_kept(api: Api, fleet: Fleet, state: Redis) -> None:
    job = api.done(fleet.hire(), {"x": 1, "fail": True})
    assert state.ttl(keys.job_events(job)) > 0
    api.client.post(f"/v1/jobs/{job}/retry")
    assert state.ttl(keys.job_events(job)) == -1


def test_the_stream_of_a_retried_job_continues_after_its_first_end(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    job = api.done(hand, {"x": 1, "fail": True})
    api.client.post(f"/v1/jobs/{job}/retry")
    fleet.work(hand)
    assert [event for _, event, _ in watch(api, job) if event != "progress"].count("done") == 2


@pytest.mark.parametrize("last", ["x", "1-x", "-1", "1-2-3", "9" * 50, "١-٢"])
def test_an_invalid_last_event_id_is_refused(api: Api, last: str) -> None:
    job = api.submitted({"x": 1})
    headers = {"Last-Event-ID": last.encode().decode("latin1")}
    assert is_problem(api.client.get(f"/v1/jobs/{job}/events", headers=headers), 422, "Last-Event-ID")


def test_without_a_free_seat_streams_are_refused_and_submits_do_not_wait(api: Api) -> None:
    long_requests = api.app.extensions["assay"].long_requests
    job = api.submitted({"x": 1})
    taken = 0
    while long_requests.take():
        taken += 1
    assert taken == long_requests.total < api.fleet.settings.web_threads
    reply = api.client.get(f"/v1/jobs/{job}/events")
    assert is_problem(reply, 503)
    assert reply.headers["Retry-After"] == "5"
    assert api.submit({"x": 2}, query="?wait=30").status_code == 202
    long_requests.give_back()
    api.client.head(f"/v1/jobs/{job}/events").close()
    assert long_requests.take(), "a stream that was never read is released"


def test_events_of_an_unknown_job_are_404(api: Api) -> None:
    assert is_problem(api.client.get(f"/v1/jobs/{'0' * 32}/events"), 404)


def test_progress_has_rate_remaining_time_and_failure_reasons(api: Api, fleet: Fleet) -> None:
    items = [{"x": x, "fail": x % 2 == 1} for x in range(20)]
    hand, job = fleet.hire(), api.submitted(*items, spec={"cost_s": 0.1, "batch_items": 1})

    def work() -> None:
        wait_until(lambda: api.app.extensions["assay"].event_hub.watched, "the stream is open")
        fleet.finish(job, hand)

    worker = threading.Thread(target=work)
    worker.start()
    told = [data for _, event, data in watch(api, job) if event == "progress"]
    worker.join()
    figures = [data for data in told if "rate" in data]
    assert figures
    assert all(data["rate"] > 0 and data["eta_s"] >= 0 and data["cached"] == 0 for data in figures)
    assert all(sum(data["reasons"].values()) == data["failed"] for data in figures), (
        "the figures of an event are consistent with each other"
    )
    assert {name for data in figures for name in data["reasons"]} == {"simulated_failure"}
