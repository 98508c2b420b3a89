"""`/v1/jobs/{id}/summary`: statistics of a job's outcomes.

A job of up to 10,000 items is read completely. From a larger job, 10,000 items are sampled, in pages spread evenly.
"""

import threading
import time
from collections import OrderedDict
from typing import Any

from flask import Blueprint, Response, current_app

from tasks.jobs.model import Job
from tasks.jobs.queries.results import Results
from tasks.jobs.queries.summary import JobSummary
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.jobs.schemas import SummaryView
from web.jobs.views import find
from web.services import services

blueprint = Blueprint("summaries", __name__, url_prefix="/v1/jobs")

#: Limit of the items that a summary reads, and the size of a page of a sample.
MAX_ITEMS, PAGE = 10_000, 500
#: Summaries cached by a process. That of a running job expires after TTL_FACTOR times its computing time, at least 1 s.
MAX_CACHED, TTL_FACTOR = 64, 10


class SummaryCache:
    """Cache of the last summaries: however many pages show a job, its outcomes are read at a limited rate."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._summaries: OrderedDict[str, tuple[tuple[Any, ...], float, dict[str, Any]]] = OrderedDict()

    def get(self, job: Job, now: float) -> dict[str, Any] | None:
        with self._lock:
            state, until, summary = self._summaries.get(job.id, ((), 0.0, {}))
        return summary if state == _state(job) or (state and job.is_active and now < until) else None

    def put(self, job: Job, until: float, summary: dict[str, Any]) -> None:
        with self._lock:
            self._summaries[job.id] = (_state(job), until, summary)
            self._summaries.move_to_end(job.id)
            if len(self._summaries) > MAX_CACHED:
                self._summaries.popitem(last=False)


def _state(job: Job) -> tuple[Any, ...]:
    return job.state, job.epoch, job.ok, job.failed, job.total


@blueprint.get("/<job_id>/summary")
@described(
    "Summarise a job's outcomes: a histogram of scores, latency percentiles, failures by type with examples. For more "
    "than 10,000 items it is an even sample, and `is_sample` is true; counts of failures always cover the whole job.",
    {200: SummaryView},
    errors=(404,),
)
def summary(job_id: str) -> Response:
    job, cached = find(job_id), current_app.extensions.setdefault("summaries", SummaryCache())
    began = time.monotonic()
    summary = cached.get(job, began)
    if summary is None:
        summary = summarise(services().core.results, job)
        took_s = time.monotonic() - began
        cached.put(job, began + max(1.0, TTL_FACTOR * took_s), summary)
    return json_response(summary)


def summarise(results: Results, job: Job) -> dict[str, Any]:
    summary = JobSummary()
    for start, stop in pages(job.trimmed, job.total):
        summary.add(results.read(job, start, stop))
    items = job.total - job.trimmed
    return {
        "items": items,
        "looked_at": summary.looked_at,
        "is_sample": items > MAX_ITEMS,
    } | summary.as_json(job.reasons)


def pages(first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges of items to read: the whole job, or pages spread evenly over it."""
    if last - first <= MAX_ITEMS:
        return [(start, min(start + PAGE, last)) for start in range(first, last, PAGE)]
    number = MAX_ITEMS // PAGE
    # Aligned to whole pages: outcomes in files are read in parts, and a part holds a whole number of pages.
    return [(start := (first + at * (last - first) // number) // PAGE * PAGE, start + PAGE) for at in range(number)]
