"""`/v1/cache`: the size of the result cache, the reason of a hit or miss, and purging."""

from flask import Blueprint, Response

from web.cache.schemas import CacheExplanation, CacheSize, ExplainQuery, PurgeQuery, PurgeResult
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.jobs.views import find
from web.services import services

blueprint = Blueprint("cache", __name__, url_prefix="/v1/cache")


@blueprint.get("")
@described("Read the size of the cache.", {200: CacheSize})
def size() -> Response:
    return json_response(services().core.cache.size())


@blueprint.get("/explain")
@described(
    "Explain why an item was a hit or a miss: the part of its key that differs from the last answer for the same id.",
    {200: CacheExplanation},
    query=ExplainQuery,
    errors=(404, 422),
)
def explain() -> Response:
    query = read_query(ExplainQuery)
    return json_response(services().core.explain(find(query.job).id, query.index))


@blueprint.delete("")
@described(
    "Purge cached answers: the whole cache, or the answers of a kind, model, rubric or profile.",
    {200: PurgeResult},
    query=PurgeQuery,
    errors=(422,),
)
def purge() -> Response:
    query = read_query(PurgeQuery)
    labels = query.model_dump(exclude={"kind"}, exclude_none=True)
    return json_response({"removed": services().core.cache.purge(query.kind or "*", labels)})
