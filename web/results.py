"""Outcomes in input order: a page of JSON, or a stream of lines."""

from collections.abc import Iterator
from itertools import chain

from flask import Blueprint, Response, request

from web.answers import MOST_ROWS, rows, with_rows
from web.description import described, read_query
from web.jobs import find
from web.refusal import too_large
from web.schemas import ResultPage, ResultQuery
from web.services import services

blueprint = Blueprint("results", __name__, url_prefix="/v1/jobs")

LINES = "application/x-ndjson"
ALSO_LINES = (LINES, "application/jsonl")
PAGE = 1000


@blueprint.get("/<job_id>/results")
@described(
    "Read results in input order. While the job runs, items without an outcome are left out.",
    {200: (ResultPage, LINES)},
    query=ResultQuery,
    errors=(404, 413, 422),
    headers={"Accept": f"`{LINES}`: one row a line, all of them from `start` on, or `limit`."},
)
def results(job_id: str) -> Response:
    query, job = read_query(ResultQuery), find(job_id)
    if request.accept_mimetypes.best_match(["application/json", *ALSO_LINES]) in ALSO_LINES:
        stop = None if query.limit is None else query.start + query.limit
        return Response(begun(services().core.results.lines(job, query.start, stop)), mimetype=LINES)
    limit = query.limit or PAGE
    if limit > MOST_ROWS:
        raise too_large(f"limit: a page has at most {MOST_ROWS} rows; for more, ask for {LINES} in Accept.", "limit")
    stop = query.start + limit
    head = {"state": job.state, "total": job.total, "next": stop if stop < job.total else None}
    return with_rows(head, rows(job, query.start, stop))


def begun(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same, with its first piece read already: what fails at once is answered, not cut off."""
    return chain([next(pieces, b"")], pieces)
