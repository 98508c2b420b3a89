"""`/v1/jobs/{id}/results`: results in input order, as a page of JSON or a stream of lines."""

from collections.abc import Iterator
from itertools import chain

from flask import Blueprint, Response, request

from web.http.http_error import too_large
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.jobs.job_responses import MAX_ROWS, rows, with_rows
from web.jobs.schemas import ResultPage, ResultQuery
from web.jobs.views import find
from web.services import services

blueprint = Blueprint("results", __name__, url_prefix="/v1/jobs")

LINES = "application/x-ndjson"
ALSO_LINES = (LINES, "application/jsonl")
PAGE = 1000


@blueprint.get("/<job_id>/results")
@described(
    "Read results in input order. While the job runs, items without an outcome are omitted.",
    {200: (ResultPage, LINES)},
    query=ResultQuery,
    errors=(404, 413, 422),
    headers={"Accept": f"`{LINES}`: a row per line, from `start` to the end, or up to `limit` rows."},
)
def results(job_id: str) -> Response:
    query, job = read_query(ResultQuery), find(job_id)
    if request.accept_mimetypes.best_match(["application/json", *ALSO_LINES]) in ALSO_LINES:
        stop = None if query.limit is None else query.start + query.limit
        return Response(started(services().core.results.lines(job, query.start, stop)), mimetype=LINES)
    limit = query.limit or PAGE
    if limit > MAX_ROWS:
        raise too_large(f"limit: a page has at most {MAX_ROWS} rows; for more, send `Accept: {LINES}`.", "limit")
    stop = query.start + limit
    head = {"state": job.state, "total": job.total, "next": stop if stop < job.total else None}
    return with_rows(head, rows(job, query.start, stop))


def started(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Read the first piece now, then continue: an early error becomes an error response, not a truncated body."""
    return chain([next(pieces, b"")], pieces)
