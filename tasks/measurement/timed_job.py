"""Timing of a job from just before its submit: the unit of work of every benchmark that runs jobs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import Permanent
from tasks.jobs.core import JobCore
from tasks.jobs.model import Job
from tasks.jobs.states import DONE


class MeasurementFailed(Permanent):
    """The measured work failed, so its duration is meaningless."""


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A finished job in which every item succeeded, and its duration."""

    job: Job
    seconds: float
    """From just before the submit to the end of the job."""
    rows: Sequence[Mapping[str, Any]]
    seconds_with_rows: float
    """From just before the submit until the last result was read."""


def run_timed(core: JobCore, submit: Callable[[], str], wait: Callable[[str], Job]) -> TimedJob:
    """Submit a job, wait for its end and read its results. Raises MeasurementFailed unless every item succeeded.

    `submit` submits the job and returns its id; `wait` takes the id and returns the finished job: callers differ in
    their timeouts and in how they are cancelled.
    """
    started = time.perf_counter()
    ended = wait(submit())
    seconds = time.perf_counter() - started
    if ended.state != DONE or ended.ok < ended.total:
        reasons = ", ".join(f"{number} {reason}" for reason, number in ended.reasons.items()) or ended.reason
        raise MeasurementFailed(
            f"The {ended.kind} job ended as {ended.state}, {ended.ok} of {ended.total} succeeded: {reasons}."
        )
    rows = list(core.results.read(ended))
    return TimedJob(ended, seconds, rows, time.perf_counter() - started)
