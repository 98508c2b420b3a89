"""Decorator `@described(...)`: describes a view for the OpenAPI document, beside its route."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel

from web.http.schemas import NoQuery

ViewT = TypeVar("ViewT", bound=Callable[..., object])

#: A model, or the media type of a body without a model.
Content = type[BaseModel] | str


@dataclass(frozen=True, slots=True)
class Description:
    summary: str
    responses: Mapping[int, tuple[Content, ...]]
    query: type[BaseModel] = NoQuery
    errors: tuple[int, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers that the view reads, each with its meaning."""
    has_body: bool = False
    """The body is a job, in any of the formats of a submit."""
    body: type[BaseModel] | None = None
    """The body is JSON of this model."""
    may_lack_body: bool = False
    """The body is optional."""
    is_open: bool = False
    """The view needs no token."""


_described: dict[object, Description] = {}


def described(
    summary: str,
    responses: Mapping[int, Content | tuple[Content, ...]],
    query: type[BaseModel] = NoQuery,
    errors: tuple[int, ...] = (),
    headers: Mapping[str, str] | None = None,
    has_body: bool = False,
    body: type[BaseModel] | None = None,
    may_lack_body: bool = False,
    is_open: bool = False,
) -> Callable[[ViewT], ViewT]:
    listed = {status: each if isinstance(each, tuple) else (each,) for status, each in responses.items()}
    description = Description(summary, listed, query, errors, headers or {}, has_body, body, may_lack_body, is_open)

    def describe(view: ViewT) -> ViewT:
        _described[view] = description
        return view

    return describe


def description_of(view: object) -> Description | None:
    return _described.get(view)
