"""Summary of a job's outcomes, and search for items among them."""

import pytest

from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet
from web.jobs import items as items_module


def items(api: Api, job: str, query: str = "") -> tuple[list[str], int | None]:
    reply = api.client.get(f"/v1/jobs/{job}/items{query}")
    assert reply.status_code == 200, reply.text
    return [row["id"] for row in reply.json["items"]], reply.json["next"]


def mixed(api: Api, fleet: Fleet, number: int = 40) -> str:
    return api.done(
        fleet.hire(), *({"id": f"i{x}", "group_id": f"g{x % 2}", "x": x, "fail": x % 4 == 3} for x in range(number))
    )


def test_a_summary_has_scores_latencies_and_reasons(api: Api, fleet: Fleet) -> None:
    job = mixed(api, fleet)
    told = api.client.get(f"/v1/jobs/{job}/summary").json
    assert (told["items"], told["looked_at"], told["is_sample"]) == (40, 40, False)
    assert told["statuses"] == {"ok": 30, "failed": 10}
    assert told["scores"]["n"] == sum(each["count"] for each in told["scores"]["bins"]) == 30
    assert told["latency_ms"]["least"] <= told["latency_ms"]["p50"] <= told["latency_ms"]["most"]
    (failure,) = told["failures"]
    assert (failure["type"], failure["count"]) == ("simulated_failure", 10)
    assert failure["examples"][0]["id"] == "i3"
    assert "told to fail" in failure["examples"][0]["message"]


def test_a_summary_follows_the_job(api: Api, fleet: Fleet) -> None:
    job = api.submitted({"x": 1}, {"x": 2})
    assert api.client.get(f"/v1/jobs/{job}/summary").json["looked_at"] == 0
    fleet.finish(job, fleet.hire())
    assert api.client.get(f"/v1/jobs/{job}/summary").json["looked_at"] == 2, "the end is not missed"


def test_items_are_found_by_status_reason_and_words(api: Api, fleet: Fleet) -> None:
    job = mixed(api, fleet)
    failed = [f"i{x}" for x in range(40) if x % 4 == 3]
    assert items(api, job, "?status=failed") == (failed, None)
    assert items(api, job, "?error=simulated_failure&search=i3") == (["i3", "i31", "i35", "i39"], None)
    assert items(api, job, "?status=ok&search=g1&limit=2") == (["i1", "i5"], 6)
    assert items(api, job, "?status=ok&search=g1&limit=2&start=6") == (["i9", "i13"], 14)
    assert items(api, job, "?search=TOLD+TO+FAIL")[0] == failed
    assert items(api, job, "?search=7")[0] == ["i7", "i17", "i27", "i37"]
    assert items(api, job, "?error=failed") == items(api, job, "?search=nothing") == ([], None)
    assert len(items(api, job)[0]) == 40


def test_a_rare_item_of_a_large_job_is_found_page_by_page(
    api: Api, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items_module, "MAX_LOOKED_AT", 15)
    job = api.done(fleet.hire(), *({"id": f"i{x}", "x": x, "fail": x == 37} for x in range(40)))
    assert items(api, job, "?status=failed") == ([], 15)
    assert items(api, job, "?status=failed&start=15") == ([], 30)
    assert items(api, job, "?status=failed&start=30") == (["i37"], None)


def test_items_of_a_cancelled_job_say_so(api: Api) -> None:
    job = api.submitted({"id": "a", "x": 1})
    api.client.delete(f"/v1/jobs/{job}")
    assert items(api, job, "?status=cancelled") == (["a"], None)
    (failure,) = api.client.get(f"/v1/jobs/{job}/summary").json["failures"]
    assert failure["type"] == "cancelled"


@pytest.mark.parametrize(("query", "field"), [("limit=0", "limit"), ("status=lost", "status"), ("nope=1", "nope")])
def test_an_invalid_search_is_refused(api: Api, query: str, field: str) -> None:
    job = api.submitted({"x": 1})
    assert is_problem(api.client.get(f"/v1/jobs/{job}/items?{query}"), 422, field)
    for path in ("items", "summary"):
        assert is_problem(api.client.get(f"/v1/jobs/{'0' * 32}/{path}"), 404)
