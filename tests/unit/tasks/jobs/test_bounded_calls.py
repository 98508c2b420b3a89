"""Calls that may hang: a caller waits for a single timeout, and calls are accepted again when the storage answers."""

import os
import threading

import pytest

from tasks.jobs.state.bounded_calls import BoundedCalls, CallRefused
from tests.support.programs import PATIENCE_S, wait_until


def test_a_call_returns_its_result_or_raises_its_error() -> None:
    calls = BoundedCalls(PATIENCE_S)
    assert calls.run(lambda: 3) == 3
    with pytest.raises(KeyError, match="missing"):
        calls.run(lambda: {}["missing"])
    assert calls.run(threading.current_thread) is not threading.current_thread()


def test_threads_are_used_again() -> None:
    calls = BoundedCalls(PATIENCE_S)
    assert len({calls.run(threading.get_ident) for _ in range(50)}) == 1


def test_a_hung_call_times_out_once_and_further_calls_are_refused_until_it_returns() -> None:
    calls, gate = BoundedCalls(0.05), threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        calls.run(gate.wait)
    with pytest.raises(CallRefused, match="an earlier call still hangs"):
        calls.run(lambda: 3)
    gate.set()
    wait_until(lambda: _answers(calls), "calls are accepted")


def _answers(calls: BoundedCalls) -> bool:
    try:
        return calls.run(lambda: True)
    except TimeoutError:
        return False


def test_a_forked_child_has_threads_of_its_own() -> None:
    calls = BoundedCalls(PATIENCE_S)
    calls.run(lambda: 1)
    if not (child := os.fork()):
        code = 1
        try:
            code = 0 if calls.run(lambda: 2) == 2 else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
