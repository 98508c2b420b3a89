"""Assay's peers of `bench/peers/`: each gives the right answers, and what a kill costs is counted right."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers.__main__ import alone
from bench.peers.kill import PATIENCE_S, Damage, assess, kill_halfway
from bench.peers.peer import Place
from bench.peers.program import program
from bench.peers.questions import make_questions
from bench.peers.registry import JUDGES
from bench.peers.rows import make_rows
from bench.peers.speed import Course, Speed
from bench.peers.table import Report, Row, ahead
from bench.peers.witness import ApiCounts, Journal
from bench.plain_generation import load_generator
from tests import tiny_models
from workers.development_api.handle import Handle, running


@pytest.fixture(scope="module")
def development_api() -> Iterator[Handle]:
    with running(latency_ms=50) as api:
        yield api


@pytest.fixture
def place(development_api: Handle, redis_url: str, tmp_path: Path) -> Place:
    development_api.reset()
    return Place(development_api.url, redis_url, tmp_path, in_flight=4)


@pytest.mark.parametrize("name", JUDGES)
def test_a_peer_gives_every_question_its_right_verdict(name: str, place: Place, development_api: Handle) -> None:
    if not JUDGES[name].is_installed:
        pytest.skip(f"{JUDGES[name].package} is not installed: requirements/peers.txt has it")
    with program(name, place) as peer:
        asked = peer.prepare(1, 12, repeated_share=0.25)
        peer.answer()  # asserts that they are right
    assert {question.expected for question in asked} == {1.0, 10.0}, "one that always says the same would be found out"
    assert len({question.item["response"] for question in asked}) == 9
    assert development_api.calls == (9 if name in ("assay", "multiprocessing") else 12), "who asks equal ones once"


def test_a_program_that_is_killed_and_run_again_repeats_what_it_had_asked(
    place: Place, development_api: Handle
) -> None:
    # Its calls take a second in all: half of that is left when it is killed, should we look late.
    damage = kill_halfway("threads", place, ApiCounts(development_api), 80)
    assert damage.lost == 0
    assert damage.ended
    assert 40 <= damage.repeated < 80


class Silent(ApiCounts):
    """Does not say how far it is, as who writes a journal of batches cannot."""

    def count_done(self) -> None:  # type: ignore[override]
        return None


def test_where_nobody_counts_answers_the_kill_comes_after_half_of_the_time(
    place: Place, development_api: Handle
) -> None:
    damage = kill_halfway("threads", place, Silent(development_api), 80)
    assert (damage.lost, damage.ended) == (0, True)
    assert 0 < damage.repeated < 80


def test_a_batch_is_answered_as_its_rows_are_one_by_one(tmp_path: Path) -> None:
    generate = load_generator(str(tiny_models.write(tmp_path)), 12)
    chats = [row.messages for row in make_rows(1, 8)]
    assert len({len(chat[0]["content"]) for chat in chats}) > 3, "some are padded"
    answers = generate(chats)
    assert answers == [generate([chat])[0] for chat in chats]
    assert len(set(answers)) > 1


def test_lost_items_and_repeated_calls_are_told_apart() -> None:
    asked = make_questions(1, 6, 0.0)
    right = [question.expected for question in asked]
    whole = assess("it", asked, (3.0, [*right]), made=(8, 6), after_s=2.0)
    assert (whole.lost, whole.repeated, whole.ended) == (0, 2, True)
    cut = assess("it", asked, (PATIENCE_S, [None, *right[1:5], -right[5]]), made=(5, 5), after_s=118.0)
    assert (cut.lost, cut.repeated, cut.ended) == (2, 0, False), "a wrong verdict is no answer"
    gone = assess("it", asked, None, made=(4, 3), after_s=1.0)
    assert (gone.lost, gone.repeated, gone.ended) == (6, 1, False)


def test_who_is_ahead_of_assay_is_read_from_the_table() -> None:
    ours = Row("Assay", Speed(items_per_s=[100.0, 110.0, 90.0], cpu_s=[2.0]), Damage("it", 0, 3, True, 5.0))
    faster = Row("fast", Speed(items_per_s=[200.0], cpu_s=[1.99]), Damage("it", 7, 0, True, 4.9))
    said = list(ahead({"assay": ours, "fast": faster, "failed": Row("failed")}))
    assert "- items/s (100): fast (200)" in said
    assert "- CPU (2): nobody" in said, "what differs by less than rounds do is no lead"
    assert "- items lost by the kill (0): nobody" in said
    assert "- items repeated by it (3): fast (0)" in said
    assert not [line for line in said if line.startswith("- memory")], "it was not measured"


def test_a_peer_that_fails_is_told_and_costs_the_others_nothing(place: Place, tmp_path: Path) -> None:
    report = Report(tmp_path / "peers")
    course = Course(place, Journal(tmp_path), 1, 10, 0.0, 1)
    report.rows = {
        "rq": Row("RQ"),
        "threads": Row("ThreadPoolExecutor", Speed("1 process", [50.0], [1.0], [0.1], [1.0])),
    }
    with alone("rq", "kill -9", course, report):
        raise RuntimeError("not ready within 60 s")
    text = (tmp_path / "peers.md").read_text()
    assert "**Failed:** RQ, kill -9: RuntimeError: not ready within 60 s." in text
    assert "| ThreadPoolExecutor | 1 process | 50 (50 to 50) |" in text
