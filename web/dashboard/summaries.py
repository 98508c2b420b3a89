"""What a job's outcomes come to, without reading a million of them at each look: all of a job of up to 10,000 items,
of a larger one as many, in pages spread evenly over it."""

import threading
import time
from collections import OrderedDict
from typing import Any

from flask import Blueprint, Response, current_app

from tasks.jobs.model import Job
from tasks.jobs.results import Results
from tasks.jobs.summary import Summary
from web.answers import answer
from web.description import described
from web.jobs import find
from web.schemas import SummaryView
from web.services import services

blueprint = Blueprint("summaries", __name__, url_prefix="/v1/jobs")

#: Items that are looked at, and those of one page of a sample.
MOST_ITEMS, PAGE = 10_000, 500
#: Summaries kept by a process; of a job that runs, for so many times as long as it took to make, and a second at least.
KEPT, PATIENCE = 64, 10


class Kept:
    """The last summaries: however many pages look at a job, it is read now and then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._summaries: OrderedDict[str, tuple[tuple[Any, ...], float, dict[str, Any]]] = OrderedDict()

    def get(self, job: Job, now: float) -> dict[str, Any] | None:
        with self._lock:
            state, until, told = self._summaries.get(job.id, ((), 0.0, {}))
        return told if state == _state(job) or (state and job.is_active and now < until) else None

    def put(self, job: Job, until: float, told: dict[str, Any]) -> None:
        with self._lock:
            self._summaries[job.id] = (_state(job), until, told)
            self._summaries.move_to_end(job.id)
            if len(self._summaries) > KEPT:
                self._summaries.popitem(last=False)


def _state(job: Job) -> tuple[Any, ...]:
    return job.state, job.epoch, job.ok, job.failed, job.total


@blueprint.get("/<job_id>/summary")
@described(
    "What a job's outcomes come to: scores as a histogram, latency percentiles, failures by reason with examples. Of "
    "more than 10,000 items it is an even sample, and says so; counts of failures are always of all.",
    {200: SummaryView},
    errors=(404,),
)
def summary(job_id: str) -> Response:
    job, kept = find(job_id), current_app.extensions.setdefault("summaries", Kept())
    began = time.monotonic()
    told = kept.get(job, began)
    if told is None:
        told = summarise(services().core.results, job)
        took_s = time.monotonic() - began
        kept.put(job, began + max(1.0, PATIENCE * took_s), told)
    return answer(told)


def summarise(results: Results, job: Job) -> dict[str, Any]:
    summary = Summary()
    for start, stop in pages(job.trimmed, job.total):
        summary.add(results.read(job, start, stop))
    items = job.total - job.trimmed
    return {
        "items": items,
        "looked_at": summary.looked_at,
        "is_sample": items > MOST_ITEMS,
    } | summary.as_json(job.reasons)


def pages(first: int, last: int) -> list[tuple[int, int]]:
    """Which items are looked at: all, or pages as far from each other as they can be."""
    if last - first <= MOST_ITEMS:
        return [(start, min(start + PAGE, last)) for start in range(first, last, PAGE)]
    number = MOST_ITEMS // PAGE
    # On whole pages: outcomes in files are read a part at a time, and a part is so many pages.
    return [(start := (first + at * (last - first) // number) // PAGE * PAGE, start + PAGE) for at in range(number)]
