"""Cached answers: why an item was a hit or a miss, how much there is, and throwing some away."""

from flask import Blueprint, Response

from web.answers import answer
from web.description import described, read_query
from web.jobs import find
from web.schemas import CacheSize, ExplainQuery, Explanation, Purged, PurgeQuery
from web.services import services

blueprint = Blueprint("cache", __name__, url_prefix="/v1/cache")


@blueprint.get("")
@described("Tell how much the cache holds.", {200: CacheSize})
def size() -> Response:
    return answer(services().core.cache.size())


@blueprint.get("/explain")
@described(
    "Tell why an item was a hit or a miss: which part of its key differs from the last answer for the same item id.",
    {200: Explanation},
    query=ExplainQuery,
    errors=(404, 422),
)
def explain() -> Response:
    query = read_query(ExplainQuery)
    return answer(services().core.explain(find(query.job).id, query.index))


@blueprint.delete("")
@described(
    "Throw cached answers away: all, or those of a kind, model, rubric or profile.",
    {200: Purged},
    query=PurgeQuery,
    errors=(422,),
)
def purge() -> Response:
    query = read_query(PurgeQuery)
    labels = query.model_dump(exclude={"kind"}, exclude_none=True)
    return answer({"removed": services().core.cache.purge(query.kind or "*", labels)})
