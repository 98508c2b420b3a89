"""The rule scorers there are, with their options: made from the scorers themselves."""

from flask import Blueprint, Response

from tasks.scoring import registry
from web.answers import answer
from web.description import described
from web.schemas import Scorers

blueprint = Blueprint("scorers", __name__, url_prefix="/v1/scorers")


@blueprint.get("")
@described("List the rule scorers of job kind `score`, with their options as JSON schemas.", {200: Scorers})
def listing() -> Response:
    return answer({"scorers": registry.describe()})
