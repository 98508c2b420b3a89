"""Results over HTTP: pages of JSON, or lines."""

import json

from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet

LINES = {"Accept": "application/x-ndjson"}


def test_results_are_in_input_order_in_pages(api: Api, fleet: Fleet) -> None:
    job = api.done(fleet.hire(), *({"id": f"i{number}", "x": number} for number in range(25)))
    seen, start = [], 0
    while start is not None:
        page = api.client.get(f"/v1/jobs/{job}/results?start={start}&limit=10").json
        assert (page["state"], page["total"]) == ("done", 25)
        seen += [row["id"] for row in page["results"]]
        start = page["next"]
    assert seen == [f"i{number}" for number in range(25)]


def test_results_are_sent_as_lines_on_request(api: Api, fleet: Fleet) -> None:
    job = api.done(fleet.hire(), *({"x": number} for number in range(450)))
    reply = api.client.get(f"/v1/jobs/{job}/results", headers=LINES)
    assert (reply.status_code, reply.mimetype) == (200, "application/x-ndjson")
    assert [json.loads(line)["index"] for line in reply.text.splitlines()] == list(range(450))
    part = api.client.get(f"/v1/jobs/{job}/results?start=440&limit=5", headers=LINES)
    assert [json.loads(line)["index"] for line in part.text.splitlines()] == [440, 441, 442, 443, 444]


def test_finished_results_are_readable_while_a_job_runs(api: Api, fleet: Fleet) -> None:
    job = api.submitted({"x": 0}, {"x": 1})
    assert api.client.get(f"/v1/jobs/{job}/results").json == {
        "state": "queued",
        "total": 2,
        "results": [],
        "next": None,
    }
    assert api.client.get(f"/v1/jobs/{job}/results", headers=LINES).text == ""
    fleet.work(fleet.hire())
    assert len(api.client.get(f"/v1/jobs/{job}/results").json["results"]) == 2


def test_the_request_sets_the_score_of_failed_items(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    filled = api.done(hand, {"x": 1, "fail": True}, on_error={"fill": -1.0})
    (row,) = api.client.get(f"/v1/jobs/{filled}/results").json["results"]
    assert (row["score"], row["valid"], row["error"]["type"]) == (-1.0, False, "simulated_failure")


def test_a_page_that_is_too_long_is_refused_with_advice_to_read_lines(api: Api) -> None:
    job = api.submitted({"x": 1})
    reply = api.client.get(f"/v1/jobs/{job}/results?limit=10001")
    assert is_problem(reply, 413, "limit")
    assert "application/x-ndjson" in reply.json["detail"]
    for query in ("start=-1", "limit=0", "limit=x", "start=1e3", "begin=1", "start=1&start=2"):
        assert is_problem(api.client.get(f"/v1/jobs/{job}/results?{query}"), 422, query.partition("=")[0])
