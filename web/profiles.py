"""The outside APIs that jobs may name: what they may take, what they are doing, and changing the former at once."""

from flask import Blueprint, Response

from web.answers import answer
from web.description import described
from web.json_bodies import read_json
from web.schemas import LimitChange, ProfileList, ProfileView
from web.services import services

blueprint = Blueprint("profiles", __name__, url_prefix="/v1/profiles")


@blueprint.get("")
@described("List the API profiles: limits in force, calls in flight, circuit, usage of today.", {200: ProfileList})
def listing() -> Response:
    return answer({"profiles": services().board.views()})


@blueprint.get("/<profile>")
@described("Look at one API profile.", {200: ProfileView}, errors=(404,))
def look(profile: str) -> Response:
    return answer(services().board.view(profile))


@blueprint.patch("/<profile>")
@described(
    "Change limits of an API profile for all workers, from their next call on; `null` is what the profile itself says.",
    {200: ProfileView},
    errors=(400, 404, 408, 413, 415, 422),
    body=LimitChange,
)
def change(profile: str) -> Response:
    services().board.view(profile)  # what is not there cannot be changed, whatever the body says
    asked, _ = read_json(LimitChange)
    services().board.change(profile, asked.model_dump(include=asked.model_fields_set))
    return answer(services().board.view(profile))
