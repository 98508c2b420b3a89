"""`/v1/profiles`: outside APIs that jobs may name, their state, and changes of their rate limits."""

from flask import Blueprint, Response

from web.http.json_bodies import read_json
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.profiles.schemas import LimitChange, ProfileList, ProfileView
from web.services import services

blueprint = Blueprint("profiles", __name__, url_prefix="/v1/profiles")


@blueprint.get("")
@described(
    "List the API profiles: current limits, calls in flight, circuit breaker, usage of today.", {200: ProfileList}
)
def listing() -> Response:
    return json_response({"profiles": services().profile_statuses.views()})


@blueprint.get("/<profile>")
@described("Read an API profile.", {200: ProfileView}, errors=(404,))
def look(profile: str) -> Response:
    return json_response(services().profile_statuses.view(profile))


@blueprint.patch("/<profile>")
@described(
    "Change limits of an API profile for every worker, from its next call on; `null` restores the profile's own limit.",
    {200: ProfileView},
    errors=(400, 404, 408, 413, 415, 422),
    body=LimitChange,
)
def change(profile: str) -> Response:
    services().profile_statuses.view(profile)  # an unknown profile is reported before errors of the body
    asked, _ = read_json(LimitChange)
    services().profile_statuses.change(profile, asked.model_dump(include=asked.model_fields_set))
    return json_response(services().profile_statuses.view(profile))
