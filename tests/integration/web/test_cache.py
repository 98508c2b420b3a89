"""The cache and the scorers over HTTP."""

from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet

CACHED = {"spec": {"cacheable": True}}


def test_a_miss_is_explained(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    api.done(hand, {"id": "a", "x": 1}, **CACHED)
    job = api.done(hand, {"id": "a", "x": 2}, **CACHED)
    told = api.client.get(f"/v1/cache/explain?job={job}&index=0").json
    assert (told["id"], told["cached"]) == ("a", False)
    assert told["stages"][0]["differs"] == {"x": {"before": 1, "now": 2}}


def test_an_item_that_cannot_be_explained_is_a_problem(api: Api, fleet: Fleet) -> None:
    job = api.done(fleet.hire(), {"x": 1})
    assert is_problem(api.client.get(f"/v1/cache/explain?job={job}&index=1"), 422, "index")
    assert is_problem(api.client.get(f"/v1/cache/explain?job={job}"), 422, "index")
    assert is_problem(api.client.get(f"/v1/cache/explain?job={'0' * 32}&index=0"), 404)


def test_answers_are_counted_and_purged(api: Api, fleet: Fleet) -> None:
    hand = fleet.hire()
    api.done(hand, *({"x": x} for x in range(5)), **CACHED)
    assert api.client.get("/v1/cache").json["bytes"] > 0
    assert api.client.delete("/v1/cache?kind=simulated&model=another").json == {"removed": 0}
    assert api.client.delete("/v1/cache?kind=simulated").json == {"removed": 5}
    assert is_problem(api.client.delete("/v1/cache?kind=*"), 422, "kind")


def test_every_scorer_is_listed_with_its_options(api: Api) -> None:
    listed = {each["name"]: each for each in api.client.get("/v1/scorers").json["scorers"]}
    assert "tolerance" in listed["numeric_match"]["options"]["properties"]
    assert len(listed) >= 11
