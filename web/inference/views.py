"""`/v1/jobs/{id}/output` and `/statistics` of inference jobs: the rows of the output file, and each worker's work.

The output ends before the first row without an outcome. Both are read page by page: a million rows take no more memory
than a thousand.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from flask import Blueprint, Response

from tasks import quick_json
from tasks.errors import Conflict, UnknownJob
from tasks.inference.rows import output_row
from tasks.inference.statistics import Statistics
from tasks.jobs.core import JobCore
from tasks.jobs.model import Job
from tasks.jobs.state.outcome_store import PAGE
from tasks.jobs.state.payloads import BLOCK_ITEMS
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.inference.schemas import OutputQuery, StatisticsView
from web.jobs.results import LINES, started
from web.jobs.views import find
from web.services import services

blueprint = Blueprint("inference", __name__, url_prefix="/v1/jobs")


@blueprint.get("/<job_id>/output")
@described(
    "Read the rows of an inference job's output, in input order. While the job runs, the output ends before the first "
    "row without an outcome.",
    {200: LINES},
    query=OutputQuery,
    errors=(404, 409, 422),
)
def output(job_id: str) -> Response:
    query, job = read_query(OutputQuery), find(job_id)
    backend = str(_spec(job)["backend"])
    return Response(started(_output(services().core, job, backend, query.start, query.rank)), mimetype=LINES)


@blueprint.get("/<job_id>/statistics")
@described(
    "Read the statistics of an inference job, for each worker and in total; while it runs, the current figures.",
    {200: StatisticsView},
    errors=(404, 409),
)
def statistics(job_id: str) -> Response:
    job = find(job_id)
    _spec(job)
    totals = Statistics()
    for line in _lines(services().core, job, 0):
        totals.add(quick_json.read(line))
    seconds, micros = services().state.time()
    elapsed_s = (job.ended_at or seconds + micros / 1e6) - (job.started_at or job.created_at)
    busy_s = {name: share["seconds"] for name, share in job.workers.items()}
    return json_response(totals.as_json(busy_s, max(0.0, elapsed_s)))


def _spec(job: Job) -> dict[str, Any]:
    """Return the job's spec. Raises Conflict for a job without answers, and UnknownJob."""
    if job.kind != "inference":
        raise Conflict(f"The job is of kind {job.kind!r}: this endpoint needs a job of kind 'inference'.")
    _, recipes = services().core.payloads.read_work((), [job.id])
    if job.id not in recipes:
        raise UnknownJob(f"Job {job.id!r} does not exist, or has expired.")
    spec = recipes[job.id].spec
    if spec["task"] != "generate":
        raise Conflict("The job computes embeddings, not answers: read them from its results.")
    return spec


def _output(core: JobCore, job: Job, backend: str, start: int, rank: int | None) -> Iterator[bytes]:
    """Yield the output as JSONL. The iterator runs after the request, without its context, so it is given the core."""
    outcomes = _contiguous_outcomes(core, job, start)
    while page := list(islice(outcomes, BLOCK_ITEMS)):
        items = core.payloads.read(job.id, job.layout, [outcome["index"] for outcome in page])
        if len(items) < len(page):  # the job expired meanwhile
            raise UnknownJob(f"Job {job.id!r} does not exist, or has expired.")
        rows = [output_row(items[outcome["index"]], outcome, backend) for outcome in page]
        wanted = [row for row in rows if rank is None or row["worker_rank"] == rank]
        yield "".join(quick_json.write(row) + "\n" for row in wanted).encode()


def _contiguous_outcomes(core: JobCore, job: Job, start: int) -> Iterator[dict[str, Any]]:
    for index, line in enumerate(_lines(core, job, start), start):
        outcome = quick_json.read(line)
        if outcome["index"] != index:
            return
        yield outcome


def _lines(core: JobCore, job: Job, start: int) -> Iterator[str | bytes]:
    """Yield outcomes in input order. A part that is stored in a file is streamed. From Redis, at most a page is read
    ahead, since clients that wait for the next row send many requests."""
    at = start
    while at < job.total:
        pieces, end = core.outcomes.whole_part(job, at, job.total)
        if pieces is not None:
            yield from _split(pieces)
        else:
            yield from core.results.texts(job, at, end := min(end, at + PAGE))
        at = end


def _split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
