"""`/v1/scorers`: the rule scorers and their options, generated from the scorers themselves."""

from flask import Blueprint, Response

from tasks.scoring import registry
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.scorers.schemas import ScorerList

blueprint = Blueprint("scorers", __name__, url_prefix="/v1/scorers")


@blueprint.get("")
@described("List the rule scorers of job kind `score`, with their options as JSON schemas.", {200: ScorerList})
def listing() -> Response:
    return json_response({"scorers": registry.describe()})
