"""What calls of outside APIs used and cost on a day: by profile, and by the bearer token whose jobs asked."""

from dataclasses import asdict

from flask import Blueprint, Response

from tasks.apis.usage import of_profile, of_token, today
from web.answers import answer
from web.description import described, read_query
from web.schemas import UsageOfDay, UsageQuery
from web.services import services

blueprint = Blueprint("usage", __name__, url_prefix="/v1/usage")


@blueprint.get("")
@described("Look at what outside APIs were used for on a day.", {200: UsageOfDay}, query=UsageQuery, errors=(422,))
def look() -> Response:
    day, state = read_query(UsageQuery).day or today(), services().state
    tokens = services().tokens
    return answer(
        {
            "day": day,
            "profiles": {name: asdict(of_profile(state, name, day)) for name in services().board.names()},
            "tokens": {name: asdict(of_token(state, name, day)) for name in (tokens.names() if tokens else ())},
        }
    )
