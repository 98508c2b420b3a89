"""Items of a job by what became of them: by status, by reason, by a piece of their id."""

from itertools import islice
from typing import Any

from flask import Blueprint, Response

from tasks import quick_json
from web.answers import encode
from web.description import described, read_query
from web.jobs import find
from web.schemas import FoundItems, ItemQuery
from web.services import services

blueprint = Blueprint("items", __name__, url_prefix="/v1/jobs")

#: Outcomes that one request looks at; where few fit, its page is then short, or empty, and `next` goes on from there.
MOST_LOOKED_AT = 20_000


@blueprint.get("/<job_id>/items")
@described(
    "Find items of a job that have an outcome, in input order. A page may be short, or empty, and still have a `next`: "
    "each request looks at 20,000 items at most.",
    {200: FoundItems},
    query=ItemQuery,
    errors=(404, 422),
)
def find_items(job_id: str) -> Response:
    query, job = read_query(ItemQuery), find(job_id)
    stop = min(job.total, max(query.start, job.trimmed) + MOST_LOOKED_AT)
    fitting = (line for line in services().core.results.texts(job, query.start, stop) if _fits(query, line))
    found = list(islice(fitting, query.limit))
    next_start: int | None = stop if stop < job.total else None
    if len(found) == query.limit:
        after = int(quick_json.read(found[-1])["index"]) + 1
        next_start = after if after < job.total else None
    head = encode({"state": job.state, "total": job.total, "next": next_start})
    body = b'%s,"items":[%s]}' % (head[:-1], b",".join(line.encode() for line in found))
    return Response(body, mimetype="application/json")


def _fits(query: ItemQuery, line: str) -> bool:
    # A line that lacks the words cannot fit: most are not parsed.
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
    """In its id or its group's, as its index, or in what was said of its failure."""
    error = row["error"] or {}
    named = (row["id"], row["group_id"], error.get("message"))
    return search == str(row["index"]) or any(search in str(each).casefold() for each in named if each is not None)
