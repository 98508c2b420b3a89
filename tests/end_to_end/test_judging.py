"""Judge jobs through the real processes, against a judge API at the wire. The tests of this module share a system."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from assay import Assay
from assay.cli.main import main

from config import keys
from tasks.providers.usage import as_usage
from tests.end_to_end import judging as stand
from tests.end_to_end.api import Served
from tests.end_to_end.judging import Judging
from tests.support.programs import PATIENCE_S, Program, wait_until

in_full = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judging]:
    with stand.judging(tmp_path_factory.mktemp("judging")) as judging:
        yield judging


@pytest.fixture
def judging(shared: Judging) -> Judging:
    shared.renew()
    return shared


@pytest.mark.parametrize("number", [100, pytest.param(500, marks=in_full)])
def test_the_same_items_in_four_jobs_at_once_are_asked_once(judging: Judging, number: int) -> None:
    items = judging.items(number)
    with judging.api.held():  # no call is answered before every job is submitted
        jobs = [judging.submit(items) for _ in range(4)]
        wait_until(lambda: judging.api.counts()["in_flight"], "calls are in flight")
    assert [judging.finish(job).ok for job in jobs] == [number] * 4
    assert judging.api.calls == number
    again = judging.judged(items)
    assert (again.ok, again.cached, judging.api.calls) == (number, number, number)
    assert judging.judged(items, spec={"rubric": "helpfulness"}).ok == number
    assert judging.api.calls == 2 * number, "a different rubric makes a different question"
    assert judging.judged(items, spec={"model": "development-large"}).ok == number
    assert judging.api.calls == 3 * number, "and so does a different model"


def test_equal_items_of_a_job_are_asked_once_within_the_limit_of_calls_in_flight(judging: Judging) -> None:
    judging.limit(concurrency=3)
    judging.api.set(latency_ms="20")
    ended = judging.judged(judging.items(20) * 3)
    assert (ended.ok, judging.api.calls) == (60, 20)
    assert judging.api.counts()["peak_in_flight"] == 3


def test_without_the_cache_every_sample_is_a_call(judging: Judging) -> None:
    items = judging.items(10)
    for calls in (50, 100):
        ended = judging.judged(items, cache="off", spec={"samples": 5})
        assert (ended.ok, ended.cached, judging.api.calls) == (10, 0, calls)
    assert {row["parts"]["samples_valid"] for row in judging.rows(ended)} == {5}


@pytest.mark.parametrize(
    ("number", "rpm", "latency_ms", "least_peak"),
    [(200, 3600, 100, 1), pytest.param(1000, 7200, 1200, 100, marks=in_full)],
)
def test_two_workers_share_one_rate_and_a_storm_of_errors_costs_no_verdict(
    judging: Judging, number: int, rpm: int, latency_ms: int, least_peak: int
) -> None:
    """128 places, 20 % of 429s and 5 % of 500s: every item is scored, and the API never gets more than its limit."""
    judging.limit("rated", rpm=rpm)
    judging.api.set(share_429=0.2, share_500=0.05, retry_after_s=0, latency_ms=str(latency_ms))
    ended = judging.judged(number, spec={"profile": "rated"})
    assert (ended.ok, ended.failed, len(ended.workers)) == (number, 0, stand.WORKERS)
    counts = judging.api.counts(3.0)
    assert counts["by_fate"]["429"] > number / 10
    assert counts["by_fate"]["500"] > 0
    assert least_peak <= counts["peak_in_flight"] <= 128
    assert counts["peaks"][0]["calls"] <= rpm / 20 * 1.05


def test_the_last_verdict_of_a_reply_counts(judging: Judging) -> None:
    judging.api.set(thinking=True)  # its thoughts begin with the lowest score of the scale
    ended = judging.judged(10, spec={"use_schema": "never"})
    assert {row["score"] for row in judging.rows(ended)} == {10.0}


@pytest.mark.parametrize(
    ("knob", "spec", "reason"),
    [
        ("share_unparsable", {"re_asks": 1}, "verdict_missing"),
        ("share_refusal", {"re_asks": 0}, "reply_refused"),
        ("share_length", {"re_asks": 0}, "reply_cut"),
        ("share_filter", {"re_asks": 0}, "reply_filtered"),
        ("share_500", {"max_retries": 0}, "api_unavailable"),
    ],
)
def test_an_item_without_verdict_has_no_score_and_is_not_cached(
    judging: Judging, knob: str, spec: dict[str, int], reason: str
) -> None:
    judging.api.set(**{knob: 1.0})
    items = judging.items(5)
    ended = judging.judged(items, spec=spec)
    assert (ended.ok, ended.reasons) == (0, {reason: 5})
    assert [(row["score"], row["valid"]) for row in judging.rows(ended)] == [(None, False)] * 5
    judging.renew()
    again = judging.judged(items)
    assert (again.ok, again.cached, judging.api.calls) == (5, 0, 5)


def test_a_hung_connection_costs_only_its_item(judging: Judging) -> None:
    judging.api.set(share_hang=0.02, seed=1)  # with this seed only the 14th of the first 60 calls
    job = judging.submit(40, spec={"timeout_s": 300})

    def only_the_hung_waits() -> bool:
        return judging.api.counts()["by_fate"].get("hang") == 1 and judging.system.job(job).ok == 39

    wait_until(only_the_hung_waits, "every item but the hanging one has its verdict")
    judging.system.core.cancel(job)


def test_cancel_stops_the_calls(judging: Judging) -> None:
    judging.limit(concurrency=16)
    job = judging.submit(300)
    judging.system.wait_for_progress(job, 20)
    with judging.api.held():
        judging.wait_for_calls(in_flight=16)
        before = judging.api.calls
        judging.system.core.cancel(job)
        wait_until(
            lambda: not judging.system.core.state.exists(keys.running("api")), "no worker runs a chunk of the job"
        )
    judging.wait_for_calls(in_flight=0)
    # Each of the four threads learns of it by itself, and may get the places of the previous thread for a moment.
    assert judging.api.calls <= before + 3 * 16
    assert set(judging.api.counts()["by_status"]) == {"200", "left"}


def test_killed_api_workers_lose_nothing_and_only_calls_in_flight_are_repeated(judging: Judging) -> None:
    judging.limit(concurrency=16)
    job = judging.submit(300)
    judging.system.wait_for_progress(job, 20)
    with judging.api.held():
        judging.wait_for_calls(in_flight=16)
        wait_until(lambda: judging.system.job(job).ok == judging.api.calls - 16, "every answered item is committed")
        for worker in judging.system.parents("api"):
            os.kill(worker.pid, signal.SIGKILL)
        judging.wait_for_calls(in_flight=0)
    ended = judging.finish(job)
    counts = judging.api.counts()
    assert (ended.ok, ended.failed) == (300, 0)
    assert (counts["calls"], counts["distinct_bodies"]) == (316, 300)


@pytest.mark.parametrize(
    ("profile", "knobs", "timeout_s", "reason"),
    [
        ("dead", {}, 50.0, "cannot be reached"),  # a short timeout could pass before a busy worker sees the refusal
        ("careful", {"share_hang": 1.0}, 0.5, "did not answer within 0.5 s"),
    ],
)
def test_a_dead_api_fails_its_job_with_that_reason_and_no_other(
    judging: Judging, profile: str, knobs: dict[str, float], timeout_s: float, reason: str
) -> None:
    """The circuit stays open beyond the deadline, so waiting is useless."""
    judging.api.set(**knobs)
    ended = judging.judged(20, deadline_s=50.0, max_failed_share=0.5, spec={"profile": profile, "timeout_s": timeout_s})
    assert (ended.state, ended.ok, ended.reason) == ("failed", 0, "too_many_failed")
    told = [row["error"]["message"] for row in judging.rows(ended) if row["status"] != "cancelled"]
    assert len(told) > 10
    assert all(reason in message for message in told), told
    judging.api.set(share_hang=0.0)
    assert judging.judged(5, spec={"profile": "rated"}).ok == 5, "the workers are well"


def test_a_budget_stops_the_job_and_keeps_its_finished_items(judging: Judging) -> None:
    judging.limit("priced", concurrency=1)
    job = judging.submit(12, spec={"profile": "priced", "budget": 1.0})
    ended = judging.finish(job)
    spent = as_usage(judging.system.core.state.hgetall(keys.job_usage(job)))
    assert (ended.state, ended.ok + ended.failed) == ("done", 12)
    assert ended.reasons == {"budget_spent": ended.failed}
    assert 0 < ended.ok == judging.api.calls == spent.calls
    assert spent.cost["USD"] - 1.0 < 0.5, "the last call may exceed the budget, and no further call begins"


def test_the_answer_of_a_fallback_is_cached_under_the_fallback(judging: Judging) -> None:
    items = judging.items(10)
    ended = judging.judged(items, spec={"profile": "replaced"})
    assert (ended.ok, judging.api.calls) == (10, 10), judging.api.counts()
    assert {row["value"]["verdicts"][0]["answered_by"] for row in judging.rows(ended)} == {"main"}
    again = judging.judged(items)
    assert (again.cached, judging.api.calls) == (10, 10), "`main` itself has answered the same questions"
    judging.judged(items, spec={"profile": "replaced"})
    assert judging.api.calls == 20, "the verdict of the first profile is still unknown"


def test_a_judge_is_calibrated_through_the_client_and_the_command(
    judging: Judging, run: Callable[..., Program], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = judging.system.settings
    web = Served(run, settings.redis_url, ASSAY_CACHE_URL=settings.cache_url,
                 ASSAY_PROFILES_FILE=str(settings.profiles_file))  # fmt: skip
    url = f"http://127.0.0.1:{web.port}"
    items = [item | {"label": 10 if n < 6 else 1} for n, item in enumerate(judging.items(8))]
    with Assay(url) as client:
        job = client.judge(items, profile="main", spec={"mode": "reference"}).wait(PATIENCE_S, progress=False)
        found = job.calibration()
    assert (found.state, found.n, found.agreement, found.mean_error) == ("done", 8, 0.75, 2.25)
    assert found.kappa == 0.0, "it gives each item the highest score, which is no judgement"
    assert main(["calibration", job.id, "--url", url]) == 0
    assert "8 of 8 items have score and label" in capsys.readouterr().out


def test_a_worker_that_is_told_to_stop_leaves_no_connection_open(tmp_path_factory: pytest.TempPathFactory) -> None:
    with stand.judging(tmp_path_factory.mktemp("stopped")) as judging:
        judging.renew()
        judging.judged(20)
        assert judging.workers.stop() == 0
        said = judging.workers.output
    assert "Warm shutdown" in said
    assert "Unclosed" not in said
    assert not [line for line in said.splitlines() if "ERROR" in line or "Traceback" in line]
