"""Model scorer: a scorer that runs a model on a device, on many items at once. See `model_scorers/`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Generic, TypeVar

from pydantic import Field

from tasks.errors import AssayError
from tasks.inference.engine import Engine, ModelRef, Prompt
from tasks.scoring.scorer import Options

OptionsT = TypeVar("OptionsT", bound="ModelScorerOptions")


class ModelScorerOptions(Options):
    """Options of every model scorer. A subclass's docstring is the description of its scorer in the docs."""

    model: str = Field(min_length=1, max_length=500, description="A model of the server (`ASSAY_MODELS_DIR`).")


@dataclass(frozen=True, slots=True)
class ModelSample:
    """Input of a model scorer for one item."""

    prompt: Prompt
    """A text, or chat messages."""
    text: str
    """The text to score: the part of the response selected by the options."""
    references: tuple[str, ...] = ()


ModelScores = list[float | AssayError]


@dataclass(frozen=True, slots=True)
class ModelScorer(Generic[OptionsT]):
    name: str
    options: type[OptionsT]
    run: Callable[[Engine, ModelRef, Sequence[ModelSample], OptionsT], ModelScores]
    """Returns a number for each sample, or the error that prevented it."""
    version: str = "1"
    """Part of the cache key: raise it whenever the same sample may get another number."""
    cost_s: float = 0.02
    isolated = False
    cacheable = True

    @property
    def description(self) -> str:
        return cleandoc(self.options.__doc__ or "")


def model_scorer(
    name: str, options: type[OptionsT]
) -> Callable[[Callable[[Engine, ModelRef, Sequence[ModelSample], OptionsT], ModelScores]], ModelScorer[OptionsT]]:
    """Decorator that makes a model scorer of a function."""

    def decorate(
        run: Callable[[Engine, ModelRef, Sequence[ModelSample], OptionsT], ModelScores],
    ) -> ModelScorer[OptionsT]:
        return ModelScorer(name, options, run)

    return decorate
