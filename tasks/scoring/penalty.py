"""What a penalty is: a number from 0 up, taken off a reward, with a name and options. They are in `penalties/`.

How much of it is taken off, its scale, is the job's to say and is not covered here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Annotated, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tasks.scoring.lengths import MOST_TOKENS, needed

OptionsT = TypeVar("OptionsT", bound="PenaltyOptions")

Tokens = Annotated[int, Field(gt=0, le=MOST_TOKENS)]
#: How large a penalty can get, or what it is multiplied by. The bound keeps rewards finite.
Height = Annotated[float, Field(ge=0, le=1e6)]


class PenaltyOptions(BaseModel):
    """A subclass's docstring says what its penalty does."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


@dataclass(frozen=True, slots=True)
class Penalty(Generic[OptionsT]):
    grouped: ClassVar[bool]
    """Whether it is known only when the whole group is."""

    name: str
    options: type[OptionsT]
    needs_length: bool
    """Whether it wants the response's length in tokens."""

    @property
    def description(self) -> str:
        return cleandoc(self.options.__doc__ or "")


@dataclass(frozen=True, slots=True)
class ItemPenalty(Penalty[OptionsT]):
    grouped = False

    of_item: Callable[[str, int | None, OptionsT], float]
    """From a response's text and length. Raises CannotJudge without a length where one is needed."""


@dataclass(frozen=True, slots=True)
class GroupPenalty(Penalty[OptionsT]):
    grouped = True

    of_group: Callable[[Sequence[int], OptionsT], Callable[[int], float]]
    """From the lengths of a group's valid items to a function that gives any length its penalty among them."""


def by_text(name: str, options: type[OptionsT]) -> Callable[[Callable[[str, OptionsT], float]], ItemPenalty[OptionsT]]:
    """Make a penalty of a function of a response's text."""

    def decorate(measure: Callable[[str, OptionsT], float]) -> ItemPenalty[OptionsT]:
        return ItemPenalty(name, options, False, lambda text, _length, chosen: measure(text, chosen))

    return decorate


def by_length(
    name: str, options: type[OptionsT]
) -> Callable[[Callable[[int, OptionsT], float]], ItemPenalty[OptionsT]]:
    """Make a penalty of a function of a response's length."""

    def decorate(measure: Callable[[int, OptionsT], float]) -> ItemPenalty[OptionsT]:
        return ItemPenalty(name, options, True, lambda _text, length, chosen: measure(needed(length), chosen))

    return decorate


def by_group(
    name: str, options: type[OptionsT]
) -> Callable[[Callable[[Sequence[int], OptionsT], Callable[[int], float]]], GroupPenalty[OptionsT]]:
    """Make a penalty of a function of the lengths of a group."""

    def decorate(measure: Callable[[Sequence[int], OptionsT], Callable[[int], float]]) -> GroupPenalty[OptionsT]:
        return GroupPenalty(name, options, True, measure)

    return decorate
