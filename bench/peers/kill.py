"""Kill test: effect of a kill -9 halfway through a run, in lost items and repeated calls."""

import time
from dataclasses import dataclass
from typing import Any

from bench.peers.adapters.peer import PeerSetup
from bench.peers.call_counters import CallCounter
from bench.peers.peer_process import NoReply, PeerProcess, running_peer
from bench.peers.workload.judge_questions import Question

#: Seconds after which unanswered items count as lost. RQ needs 80 seconds to detect the jobs of a dead worker.
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class KillResult:
    """Outcome of a kill test."""

    killed: str
    lost: int
    """Items without a correct answer at the end of the run, or at its timeout."""
    repeated: int
    """Calls beyond the first for the same question, or rows that were started again."""
    ended: bool
    """Whether the run ended with answers before its timeout."""
    after_s: float
    """Seconds from the kill to the end of the run."""


def assess(
    killed: str,
    questions: list[Question],
    reply: tuple[float, list[Any]] | None,
    made: tuple[int, int],
    after_s: float,
) -> KillResult:
    """Compute the result of a kill test.

    `reply` has the seconds and the answers of the run, or is None if it ended without answers. `made` has the number of
    calls, and of different questions among them: a question that was never sent is lost, but not repeated."""
    took_s, answers = reply or (TIMEOUT_S, [None] * len(questions))
    lost = sum(not question.is_answered(answer) for question, answer in zip(questions, answers, strict=True))
    calls, distinct = made
    return KillResult(killed, lost, calls - distinct, took_s < TIMEOUT_S, after_s)


def kill_halfway(name: str, setup: PeerSetup, counter: CallCounter, number: int) -> KillResult:
    """Run the kill test of a peer. The questions differ, so that every repeated call is a consequence of the kill."""
    with running_peer(name, setup) as running:
        half_s = _warm_up(running, setup.in_flight, number, is_timed=counter.count_answers() is None)
        questions = running.prepare(1, number)
        counter.reset()
        running.start_answering(TIMEOUT_S)
        _wait_for_half(counter, number, half_s)
        running.kill()
        killed_s = time.monotonic()
        if running.kill_targets:
            killed = "half of its workers"
            reply = _reply(running)
        else:
            killed = "the program, run again"
            running.end()
            with running_peer(name, setup) as restarted:
                restarted.prepare(1, number)
                restarted.start_answering(TIMEOUT_S)
                reply = _reply(restarted)
        after_s = time.monotonic() - killed_s
        made = counter.count_calls()
    return assess(killed, questions, reply, made, after_s)


def _reply(running: PeerProcess) -> tuple[float, list[Any]] | None:
    try:
        return running.finish(TIMEOUT_S)
    except NoReply:
        return None


def _warm_up(running: PeerProcess, in_flight: int, number: int, is_timed: bool) -> float:
    """Warm up the peer. If `is_timed`, return half of the seconds that an undisturbed run takes."""
    running.prepare(1 + number, number if is_timed else in_flight)
    running.answer(TIMEOUT_S)
    if not is_timed:
        return 0.0
    running.prepare(1 + 2 * number, number)
    return running.answer(TIMEOUT_S)[0] / 2


def _wait_for_half(counter: CallCounter, number: int, half_s: float) -> None:
    """Wait until half of the answers have arrived; if they are not counted, wait for half of the expected time."""
    deadline = time.monotonic() + TIMEOUT_S
    while (done := counter.count_answers()) is not None and done < number // 2:
        if time.monotonic() > deadline:
            raise RuntimeError(f"fewer than {number // 2} answers within {TIMEOUT_S:.0f} s")
        time.sleep(0.02)
    time.sleep(half_s)
