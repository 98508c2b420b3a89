"""Penalty: a number of at least 0 that is subtracted from a reward, with a name and options. See `penalties/`.

Not covered: the scale of a penalty, which the job's spec sets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Annotated, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tasks.scoring.lengths import MOST_TOKENS, require_length

OptionsT = TypeVar("OptionsT", bound="PenaltyOptions")

Tokens = Annotated[int, Field(gt=0, le=MOST_TOKENS)]
#: Maximum of a penalty, or its factor. The bound keeps rewards finite.
PenaltySize = Annotated[float, Field(ge=0, le=1e6)]


class PenaltyOptions(BaseModel):
    """Options of a penalty. A subclass's docstring is the description of its penalty in the docs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


@dataclass(frozen=True, slots=True)
class Penalty(Generic[OptionsT]):
    grouped: ClassVar[bool]
    """Whether the penalty depends on the complete group."""

    name: str
    options: type[OptionsT]
    needs_length: bool
    """Whether the penalty needs the response's length in tokens."""

    @property
    def description(self) -> str:
        return cleandoc(self.options.__doc__ or "")


@dataclass(frozen=True, slots=True)
class ItemPenalty(Penalty[OptionsT]):
    grouped = False

    of_item: Callable[[str, int | None, OptionsT], float]
    """Computes the penalty from a response's text and length. Raises CannotJudge when a required length is missing."""


@dataclass(frozen=True, slots=True)
class GroupPenalty(Penalty[OptionsT]):
    grouped = True

    of_group: Callable[[Sequence[int], OptionsT], Callable[[int], float]]
    """Returns, for the lengths of a group's valid items, a function from any length to its penalty in that group."""


def by_text(name: str, options: type[OptionsT]) -> Callable[[Callable[[str, OptionsT], float]], ItemPenalty[OptionsT]]:
    """Decorator that makes a penalty of a function of a response's text."""

    def decorate(function: Callable[[str, OptionsT], float]) -> ItemPenalty[OptionsT]:
        return ItemPenalty(name, options, False, lambda text, _length, values: function(text, values))

    return decorate


def by_length(
    name: str, options: type[OptionsT]
) -> Callable[[Callable[[int, OptionsT], float]], ItemPenalty[OptionsT]]:
    """Decorator that makes a penalty of a function of a response's length."""

    def decorate(function: Callable[[int, OptionsT], float]) -> ItemPenalty[OptionsT]:
        return ItemPenalty(name, options, True, lambda _text, length, values: function(require_length(length), values))

    return decorate


def by_group(
    name: str, options: type[OptionsT]
) -> Callable[[Callable[[Sequence[int], OptionsT], Callable[[int], float]]], GroupPenalty[OptionsT]]:
    """Decorator that makes a penalty of a function of the lengths of a group."""

    def decorate(function: Callable[[Sequence[int], OptionsT], Callable[[int], float]]) -> GroupPenalty[OptionsT]:
        return GroupPenalty(name, options, True, function)

    return decorate
