"""Peers of `bench/peers/`: each returns correct answers, and the kill test counts lost and repeated items correctly."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.baselines.plain_generation import load_generator
from bench.peers.__main__ import isolated
from bench.peers.adapters.peer import PeerSetup
from bench.peers.adapters.registry import JUDGES
from bench.peers.call_counters import ApiCounts, Journal
from bench.peers.kill import TIMEOUT_S, KillResult, assess, kill_halfway
from bench.peers.peer_process import running_peer
from bench.peers.report import Report, Row, advantages
from bench.peers.speed import Speed, SpeedTest
from bench.peers.workload.inference_rows import make_rows
from bench.peers.workload.judge_questions import make_questions
from tests.support import tiny_models
from workers.development_api.control import Handle, running


@pytest.fixture(scope="module")
def development_api() -> Iterator[Handle]:
    with running(latency_ms=50) as api:
        yield api


@pytest.fixture
def setup(development_api: Handle, redis_url: str, tmp_path: Path) -> PeerSetup:
    development_api.reset()
    development_api.set(latency_ms=50)
    return PeerSetup(development_api.url, redis_url, tmp_path, in_flight=4)


@pytest.mark.parametrize("name", JUDGES)
def test_every_peer_returns_the_correct_verdict_for_each_question(
    name: str, setup: PeerSetup, development_api: Handle
) -> None:
    if not JUDGES[name].is_installed:
        pytest.skip(f"{JUDGES[name].package} is not installed: requirements/peers.txt has it")
    with running_peer(name, setup) as peer:
        questions = peer.prepare(1, 12, repeated_share=0.25)
        peer.answer()  # fails if an answer is wrong
    assert {question.expected for question in questions} == {1.0, 10.0}, "a constant answer would go unnoticed"
    assert len({question.item["response"] for question in questions}) == 9
    assert development_api.calls == (9 if name in ("assay", "multiprocessing") else 12), (
        "wrong number of deduplicated calls"
    )


def test_a_killed_and_rerun_program_repeats_its_calls(setup: PeerSetup, development_api: Handle) -> None:
    development_api.set(latency_ms=250)  # five seconds in total: half of them are left at the kill, for a late check
    result = kill_halfway("threads", setup, ApiCounts(development_api), 80)
    assert result.lost == 0
    assert result.ended
    assert 40 <= result.repeated < 80


class UncountedAnswers(ApiCounts):
    """A counter that does not know the number of answers before the end, like the journal of batches."""

    def count_answers(self) -> None:  # type: ignore[override]
        return None


def test_the_kill_comes_after_half_of_the_expected_time_if_answers_are_not_counted(
    setup: PeerSetup, development_api: Handle
) -> None:
    development_api.set(latency_ms=500)
    result = kill_halfway("threads", setup, UncountedAnswers(development_api), 40)
    assert (result.lost, result.ended) == (0, True)
    assert 0 < result.repeated < 40


def test_a_batch_has_the_same_answers_as_its_rows_alone(tmp_path: Path) -> None:
    generate = load_generator(str(tiny_models.write(tmp_path)), 12)
    chats = [row.messages for row in make_rows(1, 8)]
    assert len({len(chat[0]["content"]) for chat in chats}) > 3, "no row is padded"
    answers = generate(chats)
    assert answers == [generate([chat])[0] for chat in chats]
    assert len(set(answers)) > 1


def test_lost_items_and_repeated_calls_are_counted_separately() -> None:
    questions = make_questions(1, 6, 0.0)
    right = [question.expected for question in questions]
    whole = assess("it", questions, (3.0, [*right]), made=(8, 6), after_s=2.0)
    assert (whole.lost, whole.repeated, whole.ended) == (0, 2, True)
    cut = assess("it", questions, (TIMEOUT_S, [None, *right[1:5], -right[5]]), made=(5, 5), after_s=118.0)
    assert (cut.lost, cut.repeated, cut.ended) == (2, 0, False), "a wrong verdict counts as lost"
    gone = assess("it", questions, None, made=(4, 3), after_s=1.0)
    assert (gone.lost, gone.repeated, gone.ended) == (6, 1, False)


def test_the_report_lists_the_peers_with_better_figures_than_assay() -> None:
    ours = Row("Assay", Speed(items_per_s=[100.0, 110.0, 90.0], cpu_s=[2.0]), KillResult("it", 0, 3, True, 5.0))
    faster = Row("fast", Speed(items_per_s=[200.0], cpu_s=[1.99]), KillResult("it", 7, 0, True, 4.9))
    lines = list(advantages({"assay": ours, "fast": faster, "failed": Row("failed")}))
    assert "- items/s (100): fast (200)" in lines
    assert "- CPU (2): none" in lines, "a difference within the noise is listed"
    assert "- items lost in the kill test (0): none" in lines
    assert "- items repeated in the kill test (3): fast (0)" in lines
    assert not [line for line in lines if line.startswith("- memory")], "an unmeasured figure is listed"


def test_a_failed_peer_is_reported_and_the_figures_of_other_peers_are_kept(setup: PeerSetup, tmp_path: Path) -> None:
    report = Report(tmp_path / "peers")
    speed_test = SpeedTest(setup, Journal(tmp_path), 1, 10, 0.0, 1)
    report.rows = {
        "rq": Row("RQ"),
        "threads": Row("ThreadPoolExecutor", Speed("1 process", [50.0], [1.0], [0.1], [1.0])),
    }
    with isolated("rq", "kill -9", speed_test, report):
        raise RuntimeError("not ready within 60 s")
    text = (tmp_path / "peers.md").read_text()
    assert "**Failed:** RQ, kill -9: RuntimeError: not ready within 60 s." in text
    assert "| ThreadPoolExecutor | 1 process | 50 (50 to 50) |" in text
