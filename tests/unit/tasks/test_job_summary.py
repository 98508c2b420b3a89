"""Summary of outcomes, and the sample of outcomes from which a large job is summarized."""

from itertools import pairwise
from typing import Any

from tasks.jobs.queries.summary import BINS, EXAMPLES, JobSummary
from web.jobs.summary import MAX_ITEMS, PAGE, pages


def row(index: int, score: float | None = None, error: str = "", **other: Any) -> dict[str, Any]:
    failure = {"type": error, "message": other.pop("message", "so"), "retryable": False} if error else None
    return {
        "index": index, "id": f"i{index}", "status": "failed" if error else "ok", "score": score, "valid": not error,
        "error": failure, "cached": False, "attempts": 1, "latency_ms": 1.0, "worker": "w",
    } | other  # fmt: skip


def summed(*rows: dict[str, Any], counted: dict[str, int] | None = None) -> dict[str, Any]:
    summary = JobSummary()
    summary.add(rows)
    return summary.as_json(counted or {})


def test_few_values_are_counted_one_by_one_and_many_in_bins() -> None:
    few = summed(row(0, 0.0), row(1, 1.0), row(2, 1.0))["scores"]
    assert few["bins"] == [{"low": 0.0, "high": 0.0, "count": 1}, {"low": 1.0, "high": 1.0, "count": 2}]
    assert (few["n"], few["least"], few["most"]) == (3, 0.0, 1.0)
    many = summed(*(row(index, index / 7) for index in range(1000)))["scores"]["bins"]
    assert len(many) == BINS
    assert sum(each["count"] for each in many) == 1000, "the highest score is in the last bin, not beyond it"
    assert many[-1]["high"] == 999 / 7
    assert all(one["high"] == other["low"] for one, other in pairwise(many))


def test_the_fill_value_of_a_failed_item_is_not_a_score() -> None:
    assert summed(row(0, 0.0, error="lost"))["scores"] is None
    assert summed(row(0, 0.0, error="lost"), row(1, 1.0))["scores"]["mean"] == 1.0


def test_a_cached_item_has_no_latency() -> None:
    assert summed(row(0, 1.0, cached=True, latency_ms=0.0))["latency_ms"] is None
    told = summed(*(row(index, 1.0, latency_ms=float(index)) for index in range(100)), row(100, 1.0, cached=True))
    assert told["latency_ms"] == {
        "n": 100, "least": 0.0, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "most": 99.0,
    }  # fmt: skip


def test_examples_of_a_reason_have_different_messages() -> None:
    rows = [row(index, error="lost", message=f"said {index % 10}") for index in range(50)]
    (lost,) = summed(*rows, row(50, 1.0))["failures"]
    assert (lost["type"], lost["count"]) == ("lost", 50)
    assert [example["index"] for example in lost["examples"]] == list(range(EXAMPLES))
    assert len(summed(row(0, error="a", message="x" * 10_000))["failures"][0]["examples"][0]["message"]) == 500


def test_reasons_are_counted_by_the_ledger_beyond_the_sample() -> None:
    told = summed(row(0, error="lost"), counted={"lost": 7, "rare": 1})["failures"]
    assert [(each["type"], each["count"], len(each["examples"])) for each in told] == [("lost", 7, 1), ("rare", 1, 0)]


def test_a_small_job_is_read_completely_and_a_large_job_is_sampled_evenly() -> None:
    assert pages(0, 0) == []
    assert pages(0, 1200) == [(0, 500), (500, 1000), (1000, 1200)]
    assert sum(stop - start for start, stop in pages(0, MAX_ITEMS)) == MAX_ITEMS
    for last in (MAX_ITEMS + 1, 1_000_000):
        found = pages(0, last)
        assert sum(stop - start for start, stop in found) == MAX_ITEMS
        assert len({start for start, _ in found}) == MAX_ITEMS // PAGE, "no outcome is read twice"
        assert found[-1][0] > last - 2 * last // len(found)
