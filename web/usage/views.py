"""`/v1/usage`: calls, tokens and cost of outside APIs on a day, by profile and by bearer token."""

from dataclasses import asdict

from flask import Blueprint, Response

from tasks.providers.usage import of_profile, of_token, today
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.services import services
from web.usage.schemas import UsageOfDay, UsageQuery

blueprint = Blueprint("usage", __name__, url_prefix="/v1/usage")


@blueprint.get("")
@described(
    "Read the usage of outside APIs on a day, by profile and by bearer token.",
    {200: UsageOfDay},
    query=UsageQuery,
    errors=(422,),
)
def look() -> Response:
    day, state = read_query(UsageQuery).day or today(), services().state
    tokens = services().tokens
    return json_response(
        {
            "day": day,
            "profiles": {name: asdict(of_profile(state, name, day)) for name in services().profile_statuses.names()},
            "tokens": {name: asdict(of_token(state, name, day)) for name in (tokens.names() if tokens else ())},
        }
    )
