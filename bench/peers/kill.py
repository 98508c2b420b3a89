"""What a kill -9 halfway costs: items without an answer in the end, and questions asked again."""

import time
from dataclasses import dataclass
from typing import Any

from bench.peers.peer import Place
from bench.peers.program import NoReply, Program, program
from bench.peers.questions import Question
from bench.peers.witness import Witness

#: Seconds after which what is not answered counts as lost. RQ needs 80 until it looks for what a dead worker held.
PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True)
class Damage:
    killed: str
    lost: int
    """Items without a right answer when the run had ended, or patience had."""
    repeated: int
    """Calls beyond one for the same question, or rows begun again."""
    ended: bool
    """Whether it ended with answers, by itself and before our patience did."""
    after_s: float
    """Seconds from the kill to its end."""


def assess(
    killed: str,
    asked: list[Question],
    reply: tuple[float, list[Any]] | None,
    made: tuple[int, int],
    after_s: float,
) -> Damage:
    """`reply`: the seconds it took, and its answers; None if it ended without any. `made`: how many calls there were,
    and for how many different questions; those never asked are lost, and no repetition."""
    took_s, answers = reply or (PATIENCE_S, [None] * len(asked))
    lost = sum(not question.is_answered(answer) for question, answer in zip(asked, answers, strict=True))
    calls, distinct = made
    return Damage(killed, lost, calls - distinct, took_s < PATIENCE_S, after_s)


def kill_halfway(name: str, place: Place, witness: Witness, number: int) -> Damage:
    """All questions differ, so that whatever is asked twice is asked again."""
    with program(name, place) as running:
        half_s = _warm(running, place.in_flight, number, is_timed=witness.count_done() is None)
        asked = running.prepare(1, number)
        witness.reset()
        running.start_answering(PATIENCE_S)
        _wait_for_half(witness, number, half_s)
        running.kill()
        killed_s = time.monotonic()
        if running.victims:
            killed = "half of its workers"
            reply = _reply(running)
        else:
            killed = "the program, run again"
            running.end()
            with program(name, place) as again:
                again.prepare(1, number)
                again.start_answering(PATIENCE_S)
                reply = _reply(again)
        after_s = time.monotonic() - killed_s
        made = witness.count_made()
    return assess(killed, asked, reply, made, after_s)


def _reply(running: Program) -> tuple[float, list[Any]] | None:
    try:
        return running.finish(PATIENCE_S)
    except NoReply:
        return None


def _warm(running: Program, in_flight: int, number: int, is_timed: bool) -> float:
    """Half of the seconds that as many questions take when nobody is killed, if that is wanted."""
    running.prepare(1 + number, number if is_timed else in_flight)
    running.answer(PATIENCE_S)
    if not is_timed:
        return 0.0
    running.prepare(1 + 2 * number, number)
    return running.answer(PATIENCE_S)[0] / 2


def _wait_for_half(witness: Witness, number: int, half_s: float) -> None:
    """Until half of the answers are there, or half of the time is over where nobody counts them."""
    deadline = time.monotonic() + PATIENCE_S
    while (done := witness.count_done()) is not None and done < number // 2:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not {number // 2} answers within {PATIENCE_S:.0f} s")
        time.sleep(0.02)
    time.sleep(half_s)
