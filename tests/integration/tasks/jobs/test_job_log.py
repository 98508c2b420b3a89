"""The log: a line for each event of a job, and the job's id on every line logged while one of its chunks runs."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import keys
from config.logging import JobContextFilter
from tasks.jobs.model import JobRequest
from tasks.jobs.queries.job_log import MOST_LINES
from tasks.simulated.stages import SleepStage
from tests.support.fleet import Fleet


def queued(number: int) -> str:
    """Return a log entry in the form that the Lua scripts write."""
    return json.dumps({"job_id": f"j{number}", "event": "queued", "kind": "simulated", "total": 1, "priority": "bulk"})


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[tuple[str, str]]]:
    """Collect the job id and the message of each log record."""
    told: list[tuple[str, str]] = []

    class Keep(JobContextFilter):
        def filter(self, record: logging.LogRecord) -> bool:
            super().filter(record)
            told.append((record.__dict__["job"], record.getMessage()))
            return True

    keep = Keep()
    caplog.handler.addFilter(keep)
    with caplog.at_level(logging.INFO):
        yield told
    caplog.handler.removeFilter(keep)


def of(job: str, lines: list[tuple[str, str]]) -> list[str]:
    return [message.partition(", after")[0] for about, message in lines if about == job]


def test_each_event_of_a_job_is_logged_in_one_line(fleet: Fleet, lines: list[tuple[str, str]]) -> None:
    hand = fleet.hire()
    job = fleet.submit({"x": 1}, {"x": 2, "fail": True}, priority="bulk")
    fleet.work(hand)
    fleet.core.retry_failed(job)
    fleet.core.pause(job)
    fleet.core.resume(job)
    fleet.core.cancel(job)
    fleet.tick()
    assert of(job, lines) == [
        "simulated job submitted: 2 items, bulk",
        "simulated job started",
        "simulated job done: 1 ok, 1 failed of 2",
        "simulated job retried",
        "simulated job paused",
        "simulated job resumed",
        "simulated job cancelled (cancelled): 1 ok, 0 failed of 2",
    ]
    lines.clear()
    fleet.tick()
    assert of(job, lines) == [], "each event is logged once"


def test_items_of_a_dead_process_are_logged_with_their_job(fleet: Fleet, lines: list[tuple[str, str]]) -> None:
    hand = fleet.hire()
    job = fleet.submit({"x": 1}, {"x": 2})
    assert hand.take()
    fleet.recovery.bury(hand.runner.incarnation)
    fleet.tick()
    assert of(job, lines)[2:] == ["2 items of a simulated job are pending again: their process did not finish them"]


def test_a_flood_of_jobs_does_not_flood_the_log(fleet: Fleet, lines: list[tuple[str, str]]) -> None:
    for x in range(MOST_LINES + 20):
        fleet.submit({"x": x})
    fleet.tick()
    assert sum(" submitted: " in message for _, message in lines) == MOST_LINES
    assert ("", "and at least 20 further job events") in lines


def test_a_recovery_is_logged_despite_a_flood_of_other_events(
    fleet: Fleet, state: Any, lines: list[tuple[str, str]]
) -> None:
    state.rpush(keys.happened(), *(queued(n) for n in range(MOST_LINES)))
    state.rpush(keys.happened(), '{"job_id":"lost","event":"recovered","kind":"simulated","items":3}')
    fleet.tick()
    assert of("lost", lines) == ["3 items of a simulated job are pending again: their process did not finish them"]


def test_the_list_of_events_is_bounded_if_no_process_logs_it(fleet: Fleet, state: Any) -> None:
    state.rpush(keys.happened(), *(queued(n) for n in range(1000)))
    fleet.submit({"x": 1})
    assert state.llen(keys.happened()) == 1000


def test_lines_logged_while_a_chunk_runs_name_its_job(
    fleet: Fleet, lines: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = SleepStage.run

    def run(self: SleepStage, *arguments: Any) -> Any:
        logging.getLogger("an.engine").info("it computes")
        return computed(self, *arguments)

    monkeypatch.setattr(SleepStage, "run", run)
    hand = fleet.hire()
    job = fleet.submit({"x": 1})
    fleet.work(hand)
    assert (job, "it computes") in lines


def test_each_call_of_a_batch_is_logged_with_its_own_job(
    fleet: Fleet, lines: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.providers.retry.BASE_S", 0.01)
    (tmp_path / "profiles.toml").write_text('[profiles.main]\nbase_url = "http://127.0.0.1:1/v1"\nmodels = ["m"]\n')
    fleet.settings = fleet.settings.model_copy(update={"profiles_file": tmp_path / "profiles.toml"})
    hand = fleet.hire("api")
    hand.core.dispatcher.forget_fleet()
    spec = {"profile": "main", "max_retries": 1}
    jobs = {
        str(hand.core.submitter.submit(JobRequest(kind="judge", items=[{"prompt": text, "response": "4"}], spec=spec)))
        for text in ("1+3?", "2+2?")
    }
    hand.work()
    tried = {about for about, message in lines if message.startswith("profile main: try 1 failed")}
    assert tried == jobs
