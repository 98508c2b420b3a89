"""`/v1/rewards`: the named rewards of this server."""

from flask import Blueprint, Response

from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.rewards.schemas import RewardList
from web.services import services

blueprint = Blueprint("rewards", __name__, url_prefix="/v1/rewards")


@blueprint.get("")
@described("List the named rewards, which trainers select by name.", {200: RewardList})
def listing() -> Response:
    rewards = services().rewards
    fields = {"name", "fill", "reference_field", "spec"}
    return json_response(
        {"rewards": [each.model_dump(include=fields) | {"default": each.name == rewards.default} for each in rewards]}
    )
