"""Knobs of the development servers: frozen pydantic dataclasses, changed by name, with an error message if invalid."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KnobsT = TypeVar("KnobsT", bound="DataclassInstance")


class WrongKnob(ValueError):
    """The knob does not exist, or its value is invalid."""


def changed(knobs: KnobsT, changes: Mapping[str, Any]) -> KnobsT:
    """Return `knobs` with the changes applied. Raises WrongKnob with a message for the user."""
    names = [field.name for field in fields(knobs)]
    for name in changes:
        if name not in names:
            raise WrongKnob(f"Unknown knob {name!r}; choose from {', '.join(names)}.")
    try:
        return TypeAdapter(type(knobs)).validate_python(asdict(knobs) | dict(changes))
    except ValidationError as error:
        detail = error.errors()[0]
        message = detail["msg"].removeprefix("Value error, ")
        name = f"{detail['loc'][0]}: " if detail["loc"] else ""
        raise WrongKnob(f"{name}{message[0].lower()}{message[1:]} (it is {detail['input']!r})."[:300]) from error
