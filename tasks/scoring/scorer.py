"""What a scorer is: a pure function of a sample and its options, with a name. They are in `scorers/`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import CannotJudge
from tasks.scoring.reading import Reading

OptionsT = TypeVar("OptionsT", bound="Options")

READ = (
    "What is scored: `answer`, the last assistant turn without its thinking; `response`, that turn as it is; "
    "`all`, every assistant turn with its tool calls; `tool_calls`, the calls alone, as a JSON list."
)


class Options(BaseModel):
    """What every scorer takes. A subclass's docstring says what its scorer does."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    read: Reading = Field("answer", description=READ)
    within: str | None = Field(
        None,
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,30}$",
        description="Score only what the last `<tag>...</tag>` of this name holds.",
    )
    after: str | None = Field(
        None, min_length=1, max_length=200, description="Score only what follows the last occurrence of this text."
    )


class WholeOptions(Options):
    """What a scorer takes that looks at the thinking too."""

    read: Reading = Field("response", description=READ)


class LimitedOptions(Options):
    """What a scorer takes that runs in a process of its own, because nothing else bounds its time."""

    timeout_s: float = Field(
        5.0,
        gt=0,
        le=60,
        description="Seconds of computing after which the item fails; three times as much by the clock.",
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One item as a scorer sees it."""

    text: str
    """What is scored: the part of the response that the options chose."""
    references: tuple[str, ...] = ()
    """The accepted answers; one is enough."""
    prompt: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needed_references(self) -> tuple[str, ...]:
        if not self.references:
            raise CannotJudge("reference_missing", "The item has no `reference` to compare with.")
        return self.references


@dataclass(frozen=True, slots=True)
class Scorer(Generic[OptionsT]):
    name: str
    options: type[OptionsT]
    judge: Callable[[Sample, OptionsT], float]
    isolated: bool = False
    """Runs in a process of its own that can be ended. Its options are LimitedOptions."""
    cacheable: bool = False
    """Whether its scores are worth a cache entry; a rule is cheaper than the look."""
    version: str = "1"
    """Part of the cache key: raised whenever the same sample may get another score."""
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
    """Make a scorer of a function."""
    if isolated and not issubclass(options, LimitedOptions):
        raise TypeError(f"{name} is isolated, so its options must be LimitedOptions")

    def decorate(judge: Callable[[Sample, OptionsT], float]) -> Scorer[OptionsT]:
        return Scorer(name, options, judge, isolated, cacheable, version, cost_s)

    return decorate
