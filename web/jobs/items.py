"""`/v1/jobs/{id}/items`: search the items of a job by status, by error type, or by a part of their id."""

from itertools import islice
from typing import Any

from flask import Blueprint, Response

from tasks import quick_json
from web.http.json_responses import encode
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.jobs.schemas import ItemPage, ItemQuery
from web.jobs.views import find
from web.services import services

blueprint = Blueprint("items", __name__, url_prefix="/v1/jobs")

#: Limit of the outcomes that a request reads; if few match, its page is short or empty, and `next` continues after it.
MAX_LOOKED_AT = 20_000


@blueprint.get("/<job_id>/items")
@described(
    "Search the items of a job that have an outcome, in input order. A page may be short or empty and still have a "
    "`next`: a request reads up to 20,000 items.",
    {200: ItemPage},
    query=ItemQuery,
    errors=(404, 422),
)
def find_items(job_id: str) -> Response:
    query, job = read_query(ItemQuery), find(job_id)
    stop = min(job.total, max(query.start, job.trimmed) + MAX_LOOKED_AT)
    matching = (line for line in services().core.results.texts(job, query.start, stop) if _matches(query, line))
    found = list(islice(matching, query.limit))
    next_start: int | None = stop if stop < job.total else None
    if len(found) == query.limit:
        after = int(quick_json.read(found[-1])["index"]) + 1
        next_start = after if after < job.total else None
    head = encode({"state": job.state, "total": job.total, "next": next_start})
    body = b'%s,"items":[%s]}' % (head[:-1], b",".join(line.encode() for line in found))
    return Response(body, mimetype="application/json")


def _matches(query: ItemQuery, line: str) -> bool:
    # A line without the words cannot match: most lines are not parsed.
    if query.status and f'"{query.status}"' not in line:
        return False
    if query.error and query.error not in line:
        return False
    if not (query.status or query.error or query.search):
        return True
    row: dict[str, Any] = quick_json.read(line)
    error = row["error"] or {}
    return (
        query.status in (None, row["status"])
        and query.error in (None, error.get("type"))
        and (not query.search or _mentions(row, query.search.casefold()))
    )


def _mentions(row: dict[str, Any], search: str) -> bool:
    """Return whether the row's id, its group's id or its error message contains the text, or its index equals it."""
    error = row["error"] or {}
    named = (row["id"], row["group_id"], error.get("message"))
    return search == str(row["index"]) or any(search in str(each).casefold() for each in named if each is not None)
