"""Inference rows through the job core on the real engine, with a tiny random model: every row once, in order."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.inference.rows import output_row
from tasks.jobs.model import JobHead, JobRequest
from tests.support import tiny_models
from tests.support.fleet import Fleet, Hand
from tests.support.programs import wait_until

SPEC = {"model": "tiny", "sampling": {"max_new_tokens": 8}}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_models.write(folder / "tiny")
    tiny_models.write(folder / "other", seed=1)
    tiny_models.write(folder / "judge", tiny_models.bert())
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def slots(fleet: Fleet, models: Path) -> list[Hand]:
    fleet.settings = fleet.settings.model_copy(
        update={"models_dir": models, "storage_shared": True, "heartbeat_ttl_s": 600.0}
    )
    return [fleet.hire(index=0)]


def rows(number: int) -> list[dict[str, Any]]:
    return [{"id": str(n), "query": f"What is {n * 37 % 101}?", "context": "x" * (n % 13)} for n in range(number)]


def submit(hand: Hand, items: list[dict[str, Any]], spec: dict[str, Any] | None = None, **options: Any) -> str:
    hand.core.dispatcher.forget_fleet()
    return str(hand.core.submitter.submit(JobRequest(kind="inference", items=items, spec=spec or SPEC, **options)))


def answers(fleet: Fleet, job: str) -> list[Any]:
    return [row["value"]["answers"] if row["value"] else row["error"]["type"] for row in fleet.rows(job)]


def test_every_row_is_answered_once_and_in_order_with_any_number_of_slots(fleet: Fleet, slots: list[Hand]) -> None:
    items = rows(60)
    told: list[list[Any]] = []
    for number in range(1, 5):
        if number > 1:
            slots.append(fleet.hire(index=number - 1))
        job = submit(slots[0], items, cache="off")
        fleet.finish(job, *slots)
        assert [row["id"] for row in fleet.rows(job)] == [item["id"] for item in items]
        told.append(answers(fleet, job))
    assert told[0] == told[1] == told[2] == told[3]
    assert len({json.dumps(each) for each in told[0]}) > 20, "answers differ from row to row"
    value = fleet.rows(job)[0]["value"]
    assert value["tokens"]["completion"] <= 8
    assert value["version"]
    assert value["model"] == "tiny"


def test_ten_thousand_and_seven_rows_over_four_slots_are_each_answered_once(fleet: Fleet, slots: list[Hand]) -> None:
    hands = [*slots, *(fleet.hire(index=index) for index in range(1, 4)), fleet.hire("cpu")]
    items = [{"id": str(n), "query": str(n)} for n in range(10_007)]
    spec = {"model": "tiny", "sampling": {"max_new_tokens": 1}}
    job = submit(hands[0], items, spec, cache="off")
    ended = fleet.finish(job, *hands)
    assert ended.ok + ended.failed == 10_007
    assert set(ended.reasons) <= {"empty_answer"}
    assert [row["id"] for row in fleet.rows(job)] == [str(n) for n in range(10_007)]


def test_concurrent_jobs_share_a_model_and_keep_their_own_sampling(fleet: Fleet, slots: list[Hand]) -> None:
    hand = slots[0]
    greedy = submit(hand, rows(12), cache="off")
    drawn = submit(hand, rows(12), SPEC | {"sampling": {"max_new_tokens": 5, "temperature": 1.0, "n": 3}}, cache="off")
    again = submit(hand, rows(12), SPEC | {"sampling": {"max_new_tokens": 5, "temperature": 1.0, "n": 3}}, cache="off")
    for job in (greedy, drawn, again):
        fleet.finish(job, *slots)
    assert {len(each) for each in answers(fleet, drawn)} == {3}
    assert answers(fleet, drawn) == answers(fleet, again), (
        "the same seed gives the same answer, regardless of the other rows of the batch"
    )
    assert any(len(set(each)) > 1 for each in answers(fleet, drawn)), "samples differ"


def test_a_repeated_job_is_cached_but_not_for_a_different_model(fleet: Fleet, slots: list[Hand]) -> None:
    first = submit(slots[0], rows(10))
    fleet.finish(first, *slots)
    again = submit(slots[0], rows(10))
    assert fleet.job(again).cached == 10
    assert answers(fleet, again) == answers(fleet, first)
    other = submit(slots[0], rows(10), SPEC | {"model": "other"})
    assert fleet.finish(other, *slots).cached == 0
    assert answers(fleet, other) != answers(fleet, first)


def test_rows_with_failed_retrieval_pass_through_without_a_run(fleet: Fleet, slots: list[Hand]) -> None:
    items = [
        *rows(3),
        {"id": "bad", "original_item_id": "o", "query_index": 2, "success": False, "error": "no context"},
    ]
    job = submit(slots[0], items)
    ended = fleet.finish(job, *slots)
    assert (ended.ok, ended.reasons) == (3, {"context_failed": 1})
    row = output_row(items[3], fleet.rows(job)[3], "local")
    assert row | {"error": "Context generation failed: no context", "success": False, "query_index": 2} == row


def test_a_prompt_that_is_too_long_fails_its_row(fleet: Fleet, slots: list[Hand]) -> None:
    job = submit(slots[0], [*rows(3), {"id": "long", "query": "x" * 2000}])
    ended = fleet.finish(job, *slots)
    assert (ended.ok, ended.reasons) == (3, {"prompt_too_long": 1})


def test_an_unusable_model_is_refused_or_fails_its_rows_and_the_worker_survives(
    fleet: Fleet, slots: list[Hand], models: Path
) -> None:
    with pytest.raises(InvalidRequest, match="unknown model 'gone': use judge, other, tiny"):
        submit(slots[0], rows(1), {"model": "gone"})
    with pytest.raises(InvalidRequest, match=r"not a model: config\.json missing in empty"):
        submit(slots[0], rows(1), {"model": "empty"})
    (models / "broken").mkdir(exist_ok=True)
    (models / "broken" / "config.json").write_text("{}")
    job = submit(slots[0], rows(4), {"model": "broken"})
    ended = fleet.finish(job, *slots)
    assert (ended.ok, ended.reasons) == (0, {"not_a_model": 4})
    assert "not a model" in fleet.rows(job)[0]["error"]["message"]
    fine = submit(slots[0], rows(4))
    assert fleet.finish(fine, *slots).ok == 4


def test_rows_of_a_dead_worker_run_on_another_worker(fleet: Fleet, slots: list[Hand]) -> None:
    whole = submit(slots[0], rows(40), cache="off")
    fleet.finish(whole, *slots)
    job = submit(slots[0], rows(40), cache="off")
    chunks = slots[0].take()
    slots[0].begin(chunks)
    slots[0].leave()
    survivor = fleet.hire(index=1)
    fleet.core.ledger.reclaim(slots[0].runner.incarnation, proven=True)

    def is_over() -> bool:
        fleet.tick()
        return not fleet.finish_step(job, survivor)

    wait_until(is_over, "the job ends")
    assert answers(fleet, job) == answers(fleet, whole)


def test_a_large_job_of_lines_is_answered_from_the_storage(fleet: Fleet, slots: list[Hand]) -> None:
    fleet.settings = fleet.settings.model_copy(update={"stored_items": 50})
    cpu, device = fleet.hire("cpu"), fleet.hire(index=1)
    head = JobHead(kind="inference", spec=SPEC | {"limit": 120})
    lines = (json.dumps(row).encode() for row in rows(200))
    device.core.dispatcher.forget_fleet()
    job = device.core.submitter.submit_lines(head, lines)
    assert fleet.finish(job, cpu, device, *slots).ok == 120
    assert [row["id"] for row in fleet.rows(job)] == [str(n) for n in range(120)]


def test_log_probabilities_are_returned_on_request(fleet: Fleet, slots: list[Hand]) -> None:
    job = submit(slots[0], rows(3), SPEC | {"logprobs": True})
    fleet.finish(job, *slots)
    for row in fleet.rows(job):
        (logprobs,) = row["value"]["logprobs"]
        assert len(logprobs) == row["value"]["tokens"]["completion"]
        assert all(number <= 0 for number in logprobs)


# --- model scorers ----------------------------------------------------------------------------------------------------


def test_model_scorers_combine_with_rule_scorers_and_are_cached(fleet: Fleet, slots: list[Hand]) -> None:
    cpu = fleet.hire("cpu")
    spec = {
        "scorers": [
            {"name": "numeric_match"},
            {"name": "logprob", "weight": 0.0, "options": {"model": "tiny"}},
            {"name": "perplexity", "weight": 0.0, "options": {"model": "tiny"}},
            {"name": "reward_model", "weight": 0.0, "options": {"model": "judge"}},
        ]
    }
    items = [{"prompt": f"{n}+1?", "response": f"It is {n + 1}.", "reference": str(n + 1)} for n in range(8)]
    cpu.core.dispatcher.forget_fleet()
    for cached in (0, 8):
        job = cpu.core.submitter.submit(JobRequest(kind="score", items=items, spec=spec))
        assert fleet.finish(job, *slots, cpu).ok == 8
        told = fleet.rows(job)
        assert [row["score"] for row in told] == [1.0] * 8
        assert {tuple(row["parts"]) for row in told} == {("logprob", "perplexity", "reward_model", "numeric_match")}
        assert all(row["parts"]["logprob"] < 0 < row["parts"]["perplexity"] for row in told)
        assert cached in (0, 8)


def test_a_missing_reference_fails_an_item_of_a_model_scorer(fleet: Fleet, slots: list[Hand]) -> None:
    cpu = fleet.hire("cpu")
    spec = {"scorers": [{"name": "logprob", "options": {"model": "tiny", "of": "reference"}}]}
    cpu.core.dispatcher.forget_fleet()
    items = [{"prompt": "a", "response": "b", "reference": "c"}, {"prompt": "a", "response": "b"}]
    job = cpu.core.submitter.submit(JobRequest(kind="score", items=items, spec=spec))
    ended = fleet.finish(job, *slots, cpu)
    assert (ended.ok, ended.reasons) == (1, {"text_empty": 1})
    with pytest.raises(InvalidRequest, match=r"spec\.scorers\[0\]\.options\.model: unknown model 'minilm'"):
        cpu.core.submitter.submit(JobRequest(kind="score", items=items, spec={"scorers": [{"name": "similarity"}]}))
