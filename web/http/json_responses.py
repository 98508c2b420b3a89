"""JSON responses, serialized straight to bytes: no model in between."""

from typing import Any

from flask import Response
from pydantic_core import to_json


def encode(value: Any) -> bytes:
    """Serialize to JSON; NaN and infinity become null."""
    return to_json(value, inf_nan_mode="null")


def json_response(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, mimetype="application/json")
