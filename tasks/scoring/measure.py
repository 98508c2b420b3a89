"""What a measure is: a scorer that asks a model on a device, about many items at once. They are in `measures/`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Generic, TypeVar

from pydantic import Field

from tasks.errors import AssayError
from tasks.inference.engine import Engine, ModelRef, Prompt
from tasks.scoring.scorer import Options

OptionsT = TypeVar("OptionsT", bound="MeasureOptions")


class MeasureOptions(Options):
    """What every measure takes. A subclass's docstring says what its measure does."""

    model: str = Field(min_length=1, max_length=500, description="A model of the server's (`ASSAY_MODELS_DIR`).")


@dataclass(frozen=True, slots=True)
class Subject:
    """One item as a measure sees it."""

    prompt: Prompt
    """A text, or chat messages."""
    text: str
    """What is scored: the part of the response that the options chose."""
    references: tuple[str, ...] = ()


Measured = list[float | AssayError]


@dataclass(frozen=True, slots=True)
class Measure(Generic[OptionsT]):
    name: str
    options: type[OptionsT]
    run: Callable[[Engine, ModelRef, Sequence[Subject], OptionsT], Measured]
    """One number for each subject, or why it has none."""
    version: str = "1"
    """Part of the cache key: raised whenever the same subject may get another number."""
    cost_s: float = 0.02
    isolated = False
    cacheable = True

    @property
    def description(self) -> str:
        return cleandoc(self.options.__doc__ or "")


def measure(
    name: str, options: type[OptionsT]
) -> Callable[[Callable[[Engine, ModelRef, Sequence[Subject], OptionsT], Measured]], Measure[OptionsT]]:
    """Make a measure of a function."""

    def decorate(run: Callable[[Engine, ModelRef, Sequence[Subject], OptionsT], Measured]) -> Measure[OptionsT]:
        return Measure(name, options, run)

    return decorate
