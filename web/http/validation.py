"""Validation of queries, and the conversion of pydantic's validation errors into InvalidRequest."""

from typing import TypeVar

from flask import request
from pydantic import BaseModel, ValidationError

from tasks.errors import InvalidRequest

QueryT = TypeVar("QueryT", bound=BaseModel)

#: Names that pydantic gives to some branches of a union, in the path of an error.
_BRANCHES = ("Fill", "function-before", "str", "messages")


def read_query(model: type[QueryT]) -> QueryT:
    """Parse and validate the request's query. Raises InvalidRequest with the parameter that is invalid or unknown."""
    if repeated := next((name for name, values in request.args.lists() if len(values) > 1), None):
        raise InvalidRequest(f"{repeated}: the query has this parameter twice; send it once.", field=repeated)
    try:
        return model.model_validate(request.args.to_dict())
    except ValidationError as error:
        raise invalid_request(error) from error


def invalid_request(error: ValidationError, where: str = "") -> InvalidRequest:
    """Convert the first error into an InvalidRequest: a sentence, and the field it is about."""
    first = error.errors(include_url=False)[0]
    path = where
    for part in first["loc"]:
        # Clients do not know the names of a union's branches.
        if isinstance(part, str) and ("[" in part or part in _BRANCHES):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown field; remove it"
    elif first["type"] == "missing":
        message = "is missing"
    return InvalidRequest(f"{path}: {message}." if path else f"{message}.", field=path)
