"""Knobs of the development servers: frozen pydantic dataclasses, changed by name, with a sentence for a wrong one."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KnobsT = TypeVar("KnobsT", bound="DataclassInstance")


class WrongKnob(ValueError):
    """There is no such knob, or it has no such value."""


def changed(knobs: KnobsT, changes: Mapping[str, Any]) -> KnobsT:
    """`knobs` with these set anew. Raises WrongKnob with a sentence."""
    names = [field.name for field in fields(knobs)]
    for name in changes:
        if name not in names:
            raise WrongKnob(f"There is no knob {name!r}; there are {', '.join(names)}.")
    try:
        return TypeAdapter(type(knobs)).validate_python(asdict(knobs) | dict(changes))
    except ValidationError as error:
        detail = error.errors()[0]
        message = detail["msg"].removeprefix("Value error, ")
        name = f"{detail['loc'][0]}: " if detail["loc"] else ""
        raise WrongKnob(f"{name}{message[0].lower()}{message[1:]} (it is {detail['input']!r})."[:300]) from error
