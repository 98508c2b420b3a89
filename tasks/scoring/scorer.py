"""Scorer: a pure function of a sample and its options, with a name. The built-in scorers are in `scorers/`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import CannotJudge
from tasks.scoring.extraction import Reading

OptionsT = TypeVar("OptionsT", bound="Options")

READ = (
    "Part of the response to score: `answer`, the last assistant turn without its thinking; `response`, that turn "
    "with its thinking; `all`, every assistant turn with its tool calls; `tool_calls`, only the calls, as a JSON list."
)


class Options(BaseModel):
    """Options of every scorer. A subclass's docstring is the description of its scorer in the docs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    read: Reading = Field("answer", description=READ)
    within: str | None = Field(
        None,
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,30}$",
        description="Score only the content of the last `<tag>...</tag>` with this name.",
    )
    after: str | None = Field(
        None, min_length=1, max_length=200, description="Score only the text after the last occurrence of this string."
    )


class WholeOptions(Options):
    """Options of a scorer that by default also scores the thinking."""

    read: Reading = Field("response", description=READ)


class LimitedOptions(Options):
    """Options of a scorer that runs in a separate process, because nothing else bounds its run time."""

    timeout_s: float = Field(
        5.0,
        gt=0,
        le=60,
        description="CPU seconds after which the item fails; the wall-clock limit is three times as long.",
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """Input of a scorer for one item."""

    text: str
    """The text to score: the part of the response selected by the options."""
    references: tuple[str, ...] = ()
    """The accepted answers; a match with any of them is correct."""
    prompt: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needed_references(self) -> tuple[str, ...]:
        if not self.references:
            raise CannotJudge("reference_missing", "The item has no `reference` to compare with: add one.")
        return self.references


@dataclass(frozen=True, slots=True)
class Scorer(Generic[OptionsT]):
    name: str
    options: type[OptionsT]
    score: Callable[[Sample, OptionsT], float]
    isolated: bool = False
    """Whether it runs in a separate process, which can be killed. Its options must then be LimitedOptions."""
    cacheable: bool = False
    """Whether its scores are cached; a rule is cheaper than a cache lookup."""
    version: str = "1"
    """Part of the cache key: raise it whenever the same sample may get another score."""
    cost_s: float = 0.0001

    @property
    def description(self) -> str:
        return cleandoc(self.options.__doc__ or "")


def scorer(
    name: str,
    options: type[OptionsT],
    *,
    isolated: bool = False,
    cacheable: bool = False,
    version: str = "1",
    cost_s: float = 0.0001,
) -> Callable[[Callable[[Sample, OptionsT], float]], Scorer[OptionsT]]:
    """Decorator that makes a scorer of a function."""
    if isolated and not issubclass(options, LimitedOptions):
        raise TypeError(f"{name} is isolated: its options must be a subclass of LimitedOptions")

    def decorate(score: Callable[[Sample, OptionsT], float]) -> Scorer[OptionsT]:
        return Scorer(name, options, score, isolated, cacheable, version, cost_s)

    return decorate
