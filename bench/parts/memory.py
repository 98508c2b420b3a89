"""Benchmark of the memory of the state Redis: `python -m bench memory`.

Measures the bytes that a finished job with one item takes beside its own spec, input and outcome, after its events have
expired; and the rate at which expired jobs are removed, against the rate at which jobs are submitted and finished.
"""

import time
from collections.abc import Sequence
from typing import cast

from bench.processes.stack import Stack, measure_all
from bench.report.figures import brief, line, note
from config import keys
from tasks.jobs.dispatch.recovery import EXPIRED_JOBS, TICK_S


def _submit(stack: Stack, number: int) -> list[str]:
    return [stack.submit([{"id": f"item-{x}", "x": x}], cache="off") for x in range(number)]


def _own_bytes(stack: Stack, job_id: str) -> int:
    """Return the number of bytes of a job's spec, inputs and outcomes."""
    names = (keys.job_definition(job_id), keys.job_blocks(job_id), keys.job_outcomes(job_id, "0"))
    return sum(len(value) for name in names for value in cast(dict[str, str], stack.core.state.hgetall(name)).values())


def _finish_without_events(stack: Stack, jobs: Sequence[str]) -> None:
    """Wait for the end of jobs, and delete their events, instead of waiting until they expire."""
    for job_id in jobs:
        stack.finish(job_id)
    stack.core.state.delete(*(keys.job_events(job_id) for job_id in jobs))


def bytes_per_job(stack: Stack) -> None:
    state, number = stack.core.state, brief(3000, 200)
    with stack.workers(1):
        _finish_without_events(stack, _submit(stack, number))  # so that queues and scripts have their memory
        before = state.info("memory")["used_memory"]
        jobs = _submit(stack, number)
        _finish_without_events(stack, jobs)
        taken = (state.info("memory")["used_memory"] - before) / number
    own = sum(_own_bytes(stack, job_id) for job_id in jobs) / number
    note(f"a finished job with one item takes {taken:,.0f} bytes, {own:,.0f} of them its own spec, input and outcome")
    line("a job with one item, bytes beside its own", taken - own, "<= 3000")


def removal_rate(stack: Stack) -> None:
    state, number = stack.core.state, brief(3000, 400)
    with stack.workers(1):
        started = time.perf_counter()
        jobs = _submit(stack, number)
        for job_id in jobs:
            stack.finish(job_id)
        submitted = number / (time.perf_counter() - started)
    state.zadd(keys.expiry(), dict.fromkeys(jobs, 0))
    recovery, rounds = stack.core.recovery(), 0
    while state.zcount(keys.expiry(), "-inf", 1):
        state.hdel(keys.tick(), "last")
        recovery.tick()
        rounds += 1
    removed = number / (rounds * TICK_S)
    note(f"{submitted:,.0f} jobs/s submitted and finished, {removed:,.0f} jobs/s removed, {EXPIRED_JOBS} at a time")
    line("jobs removed per job submitted and finished", removed / submitted, ">= 2")


if __name__ == "__main__":
    raise SystemExit(measure_all(bytes_per_job, removal_rate))
