"""Reward jobs through the job core: scored on CPU workers, judged over HTTP, completed by group, never mixed up."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tasks.jobs.model import JobRequest
from tasks.scoring import registry
from tasks.scoring.scorer import Options, scorer
from tests.support.chat_api import ChatApi, Fault
from tests.support.fleet import Fleet, Hand
from tests.support.programs import wait_until

PROFILES = '[profiles.main]\nbase_url = "{url}"\nmodels = ["m"]\nconcurrency_start = 100\n'
VERDICT = {"index": 0, "message": {"role": "assistant", "content": "Score: 6"}, "finish_reason": "stop"}
SPEC = {
    "scorers": [{"name": "numeric_match"}],
    "judge": {"profile": "main", "rubric": "weighted", "reward_coefficient": 0.1, "use_schema": "never"},
    "penalties": [{"name": "group_length"}],
    "group_statistics": True,
}


@pytest.fixture
def chat_api(fleet: Fleet, tmp_path: Path) -> Iterator[ChatApi]:
    with ChatApi() as api:
        api.reply = {"choices": [VERDICT]}
        path = tmp_path / "profiles.toml"
        path.write_text(PROFILES.format(url=api.url))
        fleet.settings = fleet.settings.model_copy(update={"profiles_file": path})
        yield api


@pytest.fixture
def hands(fleet: Fleet, chat_api: ChatApi) -> list[Hand]:
    assert chat_api
    return [fleet.hire("cpu"), fleet.hire("api")]


def submit(hands: list[Hand], items: list[dict[str, Any]], spec: dict[str, Any] = SPEC, **options: Any) -> str:
    hands[0].core.dispatcher.forget_fleet()
    return str(hands[0].core.submitter.submit(JobRequest(kind="score", items=items, spec=spec, **options)))


def answer(number: int, said: int | None = None, **fields: Any) -> dict[str, Any]:
    """Return a response to a prompt out of eight; the items of a group are not contiguous."""
    return {
        "id": str(number),
        "group_id": f"g{number % 8}",
        "prompt": f"What is {number}?",
        "response": f"It is {number if said is None else said}.",
        "reference": str(number),
        "response_tokens": 10,
    } | fields


def text_of(body: dict[str, Any]) -> str:
    return json.dumps(body["messages"])


def test_a_reward_has_every_part_in_input_order(fleet: Fleet, chat_api: ChatApi, hands: list[Hand]) -> None:
    items = [
        answer(number, said=number + number % 2, response_tokens=14 if number == 8 else 10) for number in range(24)
    ]
    job = submit(hands, items)
    assert fleet.finish(job, *hands).ok == 24
    rows = fleet.rows(job)
    assert [row["id"] for row in rows] == [str(number) for number in range(24)]
    right, wrong, long = rows[0], rows[1], rows[8]
    assert right["parts"] | {"base": 1.0, "judge": 6.0, "group_length": 0.0} == right["parts"]
    assert right["score"] == pytest.approx(1 + 0.1 * 6)
    assert (wrong["score"], "judge" in wrong["parts"]) == (0.0, False), "a wrong answer is not judged"
    assert long["parts"]["median_length"] == 10.0
    assert long["score"] == pytest.approx(1 + 0.1 * 6 - 0.5)
    assert long["parts"]["advantage"] < 0 < right["parts"]["advantage"]
    assert len(chat_api.seen) == 12
    assert right["value"]["rubric"].startswith("weighted")


def test_a_reward_reuses_the_cached_verdicts_of_a_judge_job(fleet: Fleet, chat_api: ChatApi, hands: list[Hand]) -> None:
    items = [{"prompt": f"What is {n}?", "response": f"It is {n}."} for n in range(5)]
    judge = {"profile": "main", "rubric": "weighted", "use_schema": "never"}
    hands[1].core.dispatcher.forget_fleet()
    first = hands[1].core.submitter.submit(JobRequest(kind="judge", items=items, spec=judge))
    fleet.finish(first, *hands)
    assert len(chat_api.seen) == 5
    job = submit(hands, [item | {"base_score": 1} for item in items], {"judge": judge | {"reward_coefficient": 0.5}})
    ended = fleet.finish(job, *hands)
    assert (ended.ok, ended.cached, len(chat_api.seen)) == (5, 5, 5)
    assert [row["score"] for row in fleet.rows(job)] == [4.0] * 5


def test_a_hanging_judge_call_fails_its_item_and_no_group(fleet: Fleet, chat_api: ChatApi, hands: list[Hand]) -> None:
    chat_api.fault = lambda body: Fault(hang_s=600) if "It is 13." in text_of(body) else None
    # The other verdicts come from the cache: they need no call that might take longer than the hanging one may.
    fleet.finish(submit(hands, [answer(number) for number in range(64) if number != 13]), *hands)
    spec = SPEC | {"judge": SPEC["judge"] | {"timeout_s": 0.5, "max_retries": 0}}  # type: ignore[operator]
    job = submit(hands, [answer(number) for number in range(64)], spec)

    def is_over() -> bool:
        fleet.tick()
        return not fleet.finish_step(job, *hands)

    wait_until(is_over, "the job ends")
    rows = fleet.rows(job)
    assert [row["id"] for row in rows if not row["valid"]] == ["13"]
    assert (rows[13]["status"], rows[13]["score"]) == ("timed_out", None)
    assert rows[13]["parts"] == {"numeric_match": 1.0, "base": 1.0, "response_length": 10.0, "median_length": 10.0,
                                 "group_length": 0.0}  # fmt: skip
    assert rows[5]["parts"]["group_std"] == 0.0, "its group is finished without it"


def test_a_complete_group_is_available_while_another_waits(fleet: Fleet, chat_api: ChatApi, hands: list[Hand]) -> None:
    cpu, api = hands
    chat_api.fault = lambda body: Fault(hang_s=600) if "It is 1." in text_of(body) else None
    job = submit(hands, [answer(0), answer(8), answer(1), answer(9)])
    cpu.work()
    judging = Thread(target=api.work)
    judging.start()
    wait_until(lambda: (cpu.work() or fleet.job(job).ok) == 2, "the first group is out")
    assert [row["id"] for row in fleet.rows(job)] == ["0", "8"]
    assert fleet.job(job).is_active
    fleet.core.cancel(job)
    judging.join()


def test_a_scorer_that_returns_nan_fails_its_item_only(
    fleet: Fleet, hands: list[Hand], monkeypatch: pytest.MonkeyPatch
) -> None:
    @scorer("broken", Options)
    def broken(sample: Any, options: Options) -> float:  # noqa: ARG001  # the same for all
        return float("nan") if "3" in sample.text else 1.0

    known = registry.find
    monkeypatch.setattr(registry, "find", lambda name: broken if name == "broken" else known(name))
    spec = {"scorers": [{"name": "broken"}], "penalties": [{"name": "group_length"}], "group_statistics": True}
    job = submit(hands, [answer(number, group_id="g") for number in range(5)], spec)
    ended = fleet.finish(job, *hands)
    assert (ended.ok, ended.reasons) == (4, {"not_a_number": 1})
    assert [row["parts"]["group_mean"] for row in fleet.rows(job) if row["valid"]] == [1.0] * 4


def test_concurrent_jobs_never_mix_results(fleet: Fleet, hands: list[Hand]) -> None:
    jobs = [
        submit(hands, [answer(n, base_score=None) for n in range(40)], SPEC | {"combine": how})
        for how in ("mean", "sum")
    ]
    other = [submit(hands, [answer(n, said=-1) for n in range(40)])]
    for job in jobs + other:
        fleet.finish(job, *hands)
    assert [row["score"] for job in jobs for row in fleet.rows(job)] == pytest.approx([1.6] * 80)
    assert {row["score"] for row in fleet.rows(other[0])} == {0.0}


def test_a_retry_runs_whole_groups_again(fleet: Fleet, chat_api: ChatApi, hands: list[Hand]) -> None:
    chat_api.fault = lambda body: Fault(400) if "It is 2." in text_of(body) else None
    job = submit(hands, [answer(number) for number in range(16)])
    assert fleet.finish(job, *hands).failed == 1
    chat_api.fault = lambda _: None
    assert hands[0].core.retry_failed(job) == 2, "the failed item and the other item of its group"
    assert fleet.finish(job, *hands).ok == 16
    assert len(chat_api.seen) == 17, "the verdict of the other item was in the cache"
