"""What a view says of itself for the OpenAPI document: `@described(...)` beside its route. And reading its query."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flask import request
from pydantic import BaseModel, ValidationError

from tasks.errors import InvalidRequest
from web.schemas import NoQuery

ViewT = TypeVar("ViewT", bound=Callable[..., object])
QueryT = TypeVar("QueryT", bound=BaseModel)

#: What pydantic calls some branches of a union, in the path of a mistake.
_BRANCHES = ("Fill", "function-before", "str", "messages")

#: A model, or a media type for a body that no model describes.
Content = type[BaseModel] | str


@dataclass(frozen=True, slots=True)
class Description:
    summary: str
    answers: Mapping[int, tuple[Content, ...]]
    query: type[BaseModel] = NoQuery
    errors: tuple[int, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers that mean something, with what."""
    has_body: bool = False
    """It takes a job."""
    body: type[BaseModel] | None = None
    """It takes JSON of this model."""
    may_lack_body: bool = False
    """Which may be left out."""
    is_open: bool = False
    """No token is asked for."""


_described: dict[object, Description] = {}


def described(
    summary: str,
    answers: Mapping[int, Content | tuple[Content, ...]],
    query: type[BaseModel] = NoQuery,
    errors: tuple[int, ...] = (),
    headers: Mapping[str, str] | None = None,
    has_body: bool = False,
    body: type[BaseModel] | None = None,
    may_lack_body: bool = False,
    is_open: bool = False,
) -> Callable[[ViewT], ViewT]:
    listed = {status: each if isinstance(each, tuple) else (each,) for status, each in answers.items()}
    description = Description(summary, listed, query, errors, headers or {}, has_body, body, may_lack_body, is_open)

    def describe(view: ViewT) -> ViewT:
        _described[view] = description
        return view

    return describe


def description_of(view: object) -> Description | None:
    return _described.get(view)


def read_query(model: type[QueryT]) -> QueryT:
    """The request's query. Raises InvalidRequest with the parameter that is wrong, or not known."""
    if repeated := next((name for name, values in request.args.lists() if len(values) > 1), None):
        raise InvalidRequest(f"{repeated}: give this parameter once.", field=repeated)
    try:
        return model.model_validate(request.args.to_dict())
    except ValidationError as error:
        raise invalid(error) from error


def invalid(error: ValidationError, where: str = "") -> InvalidRequest:
    """The first mistake, as a sentence with its field."""
    first = error.errors(include_url=False)[0]
    path = where
    for part in first["loc"]:
        # Branches of a union have names that no client knows.
        if isinstance(part, str) and ("[" in part or part in _BRANCHES):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "there is nothing of that name; leave it out"
    elif first["type"] == "missing":
        message = "is missing"
    return InvalidRequest(f"{path}: {message}." if path else f"{message}.", field=path)
