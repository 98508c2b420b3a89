"""Cached answers: explanation of a hit or a miss, and deletion of entries."""

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tests.support.fleet import Fleet


def run(fleet: Fleet, *items: dict[str, Any], **options: Any) -> str:
    hand = fleet.hire()
    job = fleet.submit(*items, **options)
    hand.work()
    hand.leave()
    assert fleet.job(job).state == "done"
    return job


def explained(fleet: Fleet, job: str) -> dict[str, Any]:
    (stage,) = fleet.core.explain(job, 0)["stages"]
    return dict(stage)


def test_a_miss_is_explained_by_the_differing_part_of_the_key(fleet: Fleet) -> None:
    run(fleet, {"id": "a", "x": "long " * 100}, spec={"cacheable": True, "seed": 1})
    job = run(fleet, {"id": "a", "x": "long " * 100}, spec={"cacheable": True, "seed": 2})
    told = explained(fleet, job)
    assert told["differs"] == {"seed": {"before": 1, "now": 2}}
    assert told["reason"].endswith("differs in seed")


def test_a_changed_text_is_reported_by_its_hash(fleet: Fleet) -> None:
    run(fleet, {"id": "a", "x": "long " * 100}, spec={"cacheable": True})
    job = run(fleet, {"id": "a", "x": "Long " * 100}, spec={"cacheable": True})
    differs = explained(fleet, job)["differs"]
    assert list(differs) == ["x"]
    assert differs["x"]["before"].startswith("500 characters, sha256 ")
    assert differs["x"]["before"] != differs["x"]["now"]


@pytest.mark.parametrize(
    ("before", "options", "reason"),
    [
        ([{"id": "a", "x": 1}], {"spec": {"cacheable": True}}, "A hit"),
        ([], {"spec": {"cacheable": True}}, "no earlier answer for an item with this id"),
        ([{"id": "a", "x": 1}], {"spec": {"cacheable": True}, "cache": "refresh"}, "cache: refresh"),
        ([{"id": "a", "x": 1}], {"spec": {"cacheable": True}, "cache": "off"}, "cache: off"),
        ([{"id": "a", "x": 1}], {"spec": {}}, "cheaper than a lookup"),
    ],
)
def test_each_other_reason_for_a_miss_has_its_own_sentence(
    fleet: Fleet, before: list[dict[str, Any]], options: dict[str, Any], reason: str
) -> None:
    if before:
        run(fleet, *before, spec={"cacheable": True})
    assert reason in explained(fleet, run(fleet, {"id": "a", "x": 1}, **options))["reason"]


def test_an_evicted_answer_is_distinguished_from_an_answer_never_stored(fleet: Fleet) -> None:
    run(fleet, {"id": "a", "x": 1}, spec={"cacheable": True})
    fleet.core.cache.purge("simulated")
    job = run(fleet, {"id": "a", "x": 1}, spec={"cacheable": True})
    assert "expired or was evicted" in explained(fleet, job)["reason"]


def test_an_item_without_an_id_is_reported_and_an_unknown_index_is_refused(fleet: Fleet) -> None:
    job = run(fleet, {"x": 1}, spec={"cacheable": True})
    assert "has no id" in explained(fleet, job)["reason"]
    with pytest.raises(InvalidRequest, match="has no item 7"):
        fleet.core.explain(job, 7)


def test_answers_are_purged_by_kind_and_label(fleet: Fleet) -> None:
    for seed in (1, 2):
        run(fleet, *[{"x": x} for x in range(5)], spec={"cacheable": True, "seed": seed})
    assert fleet.core.cache.purge("other") == 0
    assert fleet.core.cache.purge("simulated", {"model": "simulated-1"}) == 5
    assert fleet.core.cache.purge("simulated", {"model": "simulated-1"}) == 0
    job = fleet.submit(*[{"x": x} for x in range(5)], spec={"cacheable": True, "seed": 2})
    assert fleet.job(job).cached == 5, "the entries of the second seed are still cached"
    assert fleet.core.cache.purge() == 5
    assert fleet.core.cache.size()["bytes"] > 0
