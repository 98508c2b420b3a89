"""The outside APIs that jobs may name: what they may take, what they are doing, and changing the former at once."""

from flask import Blueprint, Response, request
from pydantic import ValidationError

from web.answers import answer
from web.bodies import Body
from web.description import described
from web.refusal import Refused
from web.schemas import LimitChange, ProfileList, ProfileView
from web.services import services
from web.submission import JSON, unreadable

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
    if request.mimetype != JSON:
        raise Refused(415, "content_type", "Unknown content type", f"Send the change as {JSON}.", "Content-Type")
    try:
        asked = LimitChange.model_validate_json(Body(services().settings.max_body_mb * 1e6, "max_body_mb").whole())
    except ValidationError as error:
        raise unreadable(error) from error
    services().board.change(profile, asked.model_dump(include=asked.model_fields_set))
    return answer(services().board.view(profile))
