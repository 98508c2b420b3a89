"""What an inference job brings: the rows of its output file, as far as they go without a gap, and its statistics.

Both are read page by page: a million rows take no more memory than a thousand.
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
from tasks.jobs.outcomes import PAGE
from tasks.jobs.payloads import BLOCK_ITEMS
from web.answers import answer
from web.description import described, read_query
from web.jobs import find
from web.results import LINES, begun
from web.schemas import OutputQuery, StatisticsView
from web.services import services

blueprint = Blueprint("inference", __name__, url_prefix="/v1/jobs")


@blueprint.get("/<job_id>/output")
@described(
    "Read the rows of an inference job's output, in input order. While the job runs, those up to its first row without "
    "an outcome.",
    {200: LINES},
    query=OutputQuery,
    errors=(404, 409, 422),
)
def output(job_id: str) -> Response:
    query, job = read_query(OutputQuery), find(job_id)
    backend = str(_spec(job)["backend"])
    return Response(begun(_output(services().core, job, backend, query.start, query.rank)), mimetype=LINES)


@blueprint.get("/<job_id>/statistics")
@described(
    "What the workers did in an inference job, each and in all; so far, while it runs.",
    {200: StatisticsView},
    errors=(404, 409),
)
def statistics(job_id: str) -> Response:
    job = find(job_id)
    _spec(job)
    told = Statistics()
    for line in _lines(services().core, job, 0):
        told.add(quick_json.read(line))
    seconds, micros = services().state.time()
    elapsed_s = (job.ended_at or seconds + micros / 1e6) - (job.started_at or job.created_at)
    busy_s = {name: share["seconds"] for name, share in job.workers.items()}
    return answer(told.as_json(busy_s, max(0.0, elapsed_s)))


def _spec(job: Job) -> dict[str, Any]:
    """What was asked for. Raises Conflict for a job that has no answers."""
    if job.kind != "inference":
        raise Conflict(f"The job is of kind {job.kind!r}: only a job of kind 'inference' has this.")
    _, recipes = services().core.payloads.read_work((), [job.id])
    if job.id not in recipes:
        raise UnknownJob(f"There is no job {job.id!r}; it may have expired.")
    spec = recipes[job.id].spec
    if spec["task"] != "generate":
        raise Conflict("The job makes embeddings, not answers: they are in its results.")
    return spec


def _output(core: JobCore, job: Job, backend: str, start: int, rank: int | None) -> Iterator[bytes]:
    """Read after the request is over, like the other iterators here: so they are given the core."""
    outcomes = _without_a_gap(core, job, start)
    while page := list(islice(outcomes, BLOCK_ITEMS)):
        items = core.payloads.read(job.id, job.layout, [outcome["index"] for outcome in page])
        if len(items) < len(page):  # expired while it is read
            raise UnknownJob(f"There is no job {job.id!r}; it may have expired.")
        rows = [output_row(items[outcome["index"]], outcome, backend) for outcome in page]
        wanted = [row for row in rows if rank is None or row["worker_rank"] == rank]
        yield "".join(quick_json.write(row) + "\n" for row in wanted).encode()


def _without_a_gap(core: JobCore, job: Job, start: int) -> Iterator[dict[str, Any]]:
    for index, line in enumerate(_lines(core, job, start), start):
        outcome = quick_json.read(line)
        if outcome["index"] != index:
            return
        yield outcome


def _lines(core: JobCore, job: Job, start: int) -> Iterator[str | bytes]:
    """Outcomes in input order. A part that lies in a file is streamed; of what is in Redis never more than a page is
    read ahead, since whoever waits for the next row asks often."""
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
