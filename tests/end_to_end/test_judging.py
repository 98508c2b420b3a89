"""Judge jobs through the real processes, against a judge API at the wire."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.jobs.core import create_core
from tasks.jobs.model import JobRequest
from tests.end_to_end.system import System
from tests.judge_api import JudgeApi
from tests.programs import Program, wait_until

PROFILE = """
[profiles.main]
base_url = "{url}"
models = ["development", "other"]
concurrency = 128
concurrency_start = 128
timeout_s = 10
"""


@pytest.fixture
def judged(run: Callable[..., Program], system: System, tmp_path: Path) -> Iterator["Judged"]:
    with JudgeApi(run) as api:
        profiles = tmp_path / "profiles.toml"
        profiles.write_text(PROFILE.format(url=api.url))
        yield Judged(system, api, profiles)


class Judged:
    def __init__(self, system: System, api: JudgeApi, profiles: Path) -> None:
        self.api, self.system = api, system
        system.settings = system.settings.model_copy(update={"profiles_file": profiles})
        system.core = create_core(system.settings, system.celery)
        system.launch("api", ASSAY_PROFILES_FILE=str(profiles))
        system.wait_for_workers(4)

    def submit(self, number: int, first: int = 0, **options: Any) -> str:
        items = [
            {"id": str(n), "prompt": "How many?", "response": f"It is {n}.", "reference": str(n)}
            for n in range(first, first + number)
        ]
        spec = {"profile": "main", "mode": "reference"} | options.pop("spec", {})
        self.system.core.dispatcher.forget_fleet()
        return self.system.core.door.submit(JobRequest(kind="judge", items=items, spec=spec, **options))


def test_the_same_items_in_four_jobs_at_once_are_asked_once(judged: Judged) -> None:
    jobs = [judged.submit(100) for _ in range(4)]
    for job in jobs:
        assert judged.system.finish(job).ok == 100
    assert judged.api.calls == 100
    again = judged.submit(100)
    assert judged.system.finish(again).cached == 100
    assert judged.api.calls == 100
    other = judged.submit(100, spec={"rubric": "weighted", "mode": "scale"})
    assert judged.system.finish(other).ok == 100
    assert judged.api.calls == 200, "another rubric is another question"


def test_without_the_cache_every_sample_is_a_call(judged: Judged) -> None:
    job = judged.submit(10, cache="off", spec={"samples": 5})
    ended = judged.system.finish(job)
    assert (ended.ok, judged.api.calls) == (10, 50)
    row = judged.system.rows(job)[0]
    assert row["parts"]["samples_valid"] == 5


def test_a_storm_of_errors_costs_time_but_no_verdict(judged: Judged) -> None:
    judged.api.set(share_429=0.2, share_500=0.05, retry_after_s=0.05)
    job = judged.submit(200)
    ended = judged.system.finish(job)
    assert (ended.ok, ended.failed) == (200, 0)


def test_no_verdict_is_no_number(judged: Judged) -> None:
    judged.api.set(share_unparsable=1.0)
    job = judged.submit(5, spec={"re_asks": 1})
    ended = judged.system.finish(job)
    assert (ended.ok, ended.reasons) == (0, {"verdict_missing": 5})
    assert {row["score"] for row in judged.system.rows(job)} == {None}
    judged.api.set(share_unparsable=0.0)
    again = judged.submit(5)
    assert judged.system.finish(again).ok == 5, "a failure is not remembered"


def test_a_killed_api_worker_loses_nothing_and_repeats_only_what_was_in_flight(judged: Judged) -> None:
    judged.api.set(latency_ms="150")
    job = judged.submit(600)
    judged.system.wait_for_progress(job, 100)
    for parent in judged.system.parents("api"):
        os.kill(parent.pid, signal.SIGKILL)
    ended = judged.system.finish(job)
    assert (ended.ok, ended.failed) == (600, 0)
    assert judged.api.calls <= 600 + 2 * 128


def test_cancel_stops_the_calls(judged: Judged) -> None:
    judged.api.set(latency_ms="200")
    job = judged.submit(2000)
    judged.system.wait_for_progress(job, 20)
    judged.system.core.cancel(job)
    before = -1

    def is_quiet() -> bool:
        nonlocal before
        before, now = judged.api.calls, before
        return before == now

    wait_until(is_quiet, "no more calls come")
    assert judged.api.calls < 2000


def test_a_hung_connection_costs_only_its_item(judged: Judged) -> None:
    judged.api.set(share_hang=0.1)
    job = judged.submit(40, spec={"timeout_s": 1, "max_retries": 0})
    ended = judged.system.finish(job)
    assert ended.ok + ended.failed == 40
    assert ended.ok >= 20
    assert {row["error"]["type"] for row in judged.system.rows(job) if row["error"]} <= {"api_timeout", "timed_out"}
