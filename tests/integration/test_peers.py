"""Assay's peers of `bench/peers/`: each gives the right answers, and what a kill costs is counted right."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers.kill import PATIENCE_S, assess, kill_halfway
from bench.peers.peer import Place
from bench.peers.program import program
from bench.peers.questions import make_questions
from bench.peers.registry import JUDGES
from bench.peers.witness import ApiCounts
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
    assert development_api.calls == (9 if name == "assay" else 12), "only Assay asks equal questions once"


def test_a_program_that_is_killed_and_run_again_repeats_what_it_had_asked(
    place: Place, development_api: Handle
) -> None:
    damage = kill_halfway("threads", place, ApiCounts(development_api), 20)
    assert damage.lost == 0
    assert damage.ended
    assert 10 <= damage.repeated < 20


def test_lost_items_and_repeated_calls_are_told_apart() -> None:
    asked = make_questions(1, 6, 0.0)
    right = [question.expected for question in asked]
    whole = assess("it", asked, (3.0, [*right]), made=(8, 6), after_s=2.0)
    assert (whole.lost, whole.repeated, whole.ended) == (0, 2, True)
    cut = assess("it", asked, (PATIENCE_S, [None, *right[1:5], -right[5]]), made=(5, 5), after_s=118.0)
    assert (cut.lost, cut.repeated, cut.ended) == (2, 0, False), "a wrong verdict is no answer"
    gone = assess("it", asked, None, made=(4, 3), after_s=1.0)
    assert (gone.lost, gone.repeated, gone.ended) == (6, 1, False)
