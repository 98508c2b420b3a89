"""Pause of a stage while the circuit of its API is open: the job occupies no worker, and resumes afterwards."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import keys
from tasks.jobs.model import ItemError, JobRequest, Result
from tasks.jobs.state.outcome import retry_later, settle
from tests.support.chat_api import ChatApi, Fault
from tests.support.fleet import Fleet
from tests.support.programs import wait_until

PROFILES = """
[profiles.main]
base_url = "{main}"
models = ["m"]
max_retries = 0
circuit_failures = 3
circuit_open_s = 1.5

[profiles.dead]
base_url = "{main}"
models = ["m"]
max_retries = 0
circuit_failures = 3
circuit_open_s = 60

[profiles.other]
base_url = "{other}"
models = ["m"]
"""
VERDICT = {"index": 0, "message": {"role": "assistant", "content": "Score: 7"}, "finish_reason": "stop"}


@pytest.fixture
def apis(fleet: Fleet, tmp_path: Path) -> Iterator[dict[str, ChatApi]]:
    with ChatApi() as main, ChatApi() as other:
        for api in (main, other):
            api.reply = {"choices": [VERDICT]}
        path = tmp_path / "profiles.toml"
        path.write_text(PROFILES.format(main=main.url, other=other.url))
        fleet.settings = fleet.settings.model_copy(update={"profiles_file": path})
        yield {"main": main, "other": other}


def judge(hand: Any, number: int, profile: str, **options: Any) -> str:
    items = [{"prompt": "How many?", "response": f"It is {n}."} for n in range(number)]
    spec = {"profile": profile, "max_retries": 0, "use_schema": "never"} | options.pop("spec", {})
    hand.core.dispatcher.forget_fleet()
    return str(hand.core.submitter.submit(JobRequest(kind="judge", items=items, spec=spec, **options)))


def rests_until(fleet: Fleet, job: str) -> float:
    return float(fleet.core.state.hget(keys.job(job), "rests_until:judge") or 0)


def test_a_job_pauses_while_the_circuit_of_its_api_is_open_and_resumes_after(
    fleet: Fleet, apis: dict[str, ChatApi]
) -> None:
    hand = fleet.hire("api")
    apis["main"].fault = lambda _: Fault(500)
    job = judge(hand, 300, "main")
    hand.work()
    wait_until(lambda: (hand.work() or rests_until(fleet, job)) > 0, "the job's judge stage pauses")
    hand.work()
    seen = len(apis["main"].seen)
    assert not fleet.core.state.smembers(keys.running("api")), "no worker waits for the API"
    assert seen < 100, "most calls were never sent"
    quick = judge(hand, 5, "other")
    assert fleet.finish(quick, hand).ok == 5
    apis["main"].fault = lambda _: None

    def is_over() -> bool:
        fleet.tick()
        hand.work()
        return not fleet.job(job).is_active

    wait_until(is_over, "the job ends")
    assert (fleet.job(job).ok, fleet.job(job).failed) == (300, 0)


def test_a_dead_api_fails_the_job_with_its_own_message_before_the_deadline(
    fleet: Fleet, apis: dict[str, ChatApi]
) -> None:
    hand = fleet.hire("api")
    apis["main"].fault = lambda _: Fault(500, {"error": {"message": "the cellar is flooded"}})
    started = time.time()
    job = judge(hand, 20, "dead", deadline_s=50, max_failed_share=0)

    def is_over() -> bool:
        fleet.tick()
        hand.work()
        return not fleet.job(job).is_active

    wait_until(is_over, "the job ends")
    ended = fleet.job(job)
    assert (ended.state, ended.reason) == ("failed", "too_many_failed")
    assert (ended.ended_at or 0) < started + 50
    failed = [row for row in fleet.rows(job) if row["error"] and "cellar" in row["error"]["message"]]
    assert failed, "an item's error contains the API's own message"


def test_a_pause_that_would_outlast_the_deadline_times_the_item_out(fleet: Fleet) -> None:
    hand = fleet.hire("api")
    spec = {"stages": [{"name": "run", "pool": "api"}]}
    job = fleet.submit({"x": 1}, spec=spec, deadline_s=60)
    (chunk,) = hand.take()
    hand.begin([chunk])
    away = settle(0, {"x": 1}, Result(error=ItemError("api_unavailable", "It is away.", True, 90.0)))
    hand.core.ledger.commit(chunk, "w", 0.1, [retry_later(away, 90.0, 1, rests=True)], over=True)
    assert fleet.job(job).state == "done"
    (row,) = fleet.rows(job)
    assert (row["status"], "It is away." in row["error"]["message"]) == ("timed_out", True)
    assert not fleet.core.state.hexists(keys.job(job), "rests_until:run")
