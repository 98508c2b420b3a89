"""A body that is one JSON document: read into its model, and what is wrong with it."""

from typing import Any, TypeVar

from flask import request
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from tasks.jobs.upload import infinite
from web.bodies import Body
from web.description import invalid
from web.refusal import Refused, broken
from web.services import services

JSON = "application/json"

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_json(model: type[ModelT]) -> tuple[ModelT, int]:
    """The request's body, and how many bytes it has. Raises Refused, or InvalidRequest with the field."""
    if request.mimetype != JSON:
        raise Refused(415, "content_type", "Unknown content type", f"Send the body as {JSON}.", "Content-Type")
    text = Body(services().settings.max_body_mb * 1e6, "max_body_mb").whole()
    return parsed(model, text), len(text)


def parsed(model: type[ModelT], text: bytes) -> ModelT:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise broken(f"The body is not JSON: {first['ctx']['error']}.") from error
        raise invalid(error) from error


def require_finite(value: dict[str, Any]) -> None:
    """NaN is not JSON, and 1e999 is read as infinity: neither can be stored, hashed or computed with."""
    text = to_json(value)
    # Strings may hold these words too, so only then it is worth to look at every value.
    if (b"NaN" in text or b"Infinity" in text) and (place := infinite(value)):
        raise broken(f"{place}: is not a finite number, which JSON does not have.", place)
