"""Parsing and validation of JSON request bodies into their models."""

from typing import Any, TypeVar

from flask import request
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from tasks.jobs.submission.upload import infinite
from web.http.bodies import Body
from web.http.http_error import HttpError, broken
from web.http.validation import invalid_request
from web.services import services

JSON = "application/json"

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_json(model: type[ModelT]) -> tuple[ModelT, int]:
    """Parse the request's body. Return it with its size in bytes. Raises HttpError, or InvalidRequest with the
    field."""
    if request.mimetype != JSON:
        raise HttpError(415, "content_type", "Unknown content type", f"Send the body as {JSON}.", "Content-Type")
    text = Body(services().settings.max_body_mb * 1e6, "max_body_mb").whole()
    return parse_json(model, text), len(text)


def parse_json(model: type[ModelT], text: bytes) -> ModelT:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise broken(f"The body is not JSON: {first['ctx']['error']}.") from error
        raise invalid_request(error) from error


def require_finite(value: dict[str, Any]) -> None:
    """Reject numbers that are not finite: NaN is not JSON, and 1e999 parses as infinity.

    Neither can be stored, hashed or computed with.
    """
    text = to_json(value)
    # A string may hold these words too, so every value is checked only if they occur.
    if (b"NaN" in text or b"Infinity" in text) and (place := infinite(value)):
        raise broken(f"{place}: is not a finite number; JSON does not allow it.", place)
