"""Scorers of a response's form rather than its content: `length`, `repetition`, `format`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.scoring.scorer import Sample, WholeOptions, scorer


class Length(WholeOptions):
    """1 when the response's length is within the bounds; outside, it falls linearly to 0 at a distance of `margin`."""

    unit: Literal["chars", "words", "lines"] = Field(
        "chars", description="Unit of length; words are separated by white space."
    )
    least: int | None = Field(None, ge=0, description="Minimum length with score 1.")
    most: int | None = Field(None, ge=0, description="Maximum length with score 1.")
    margin: int = Field(0, ge=0, description="Distance from the bounds at which the score reaches 0.")

    @model_validator(mode="after")
    def _has_bounds(self) -> Self:
        if self.least is None and self.most is None:
            raise ValueError("has no bounds: set `least`, `most`, or both")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ValueError("`least` must not be greater than `most`")
        return self


@scorer("length", Length)
def length(sample: Sample, options: Length) -> float:
    count = len(_units(sample.text, options.unit))
    below = 0 if options.least is None else options.least - count
    above = 0 if options.most is None else count - options.most
    outside = max(below, above)
    return 1.0 if outside <= 0 else max(0.0, 1 - outside / options.margin) if options.margin else 0.0


class Repetition(WholeOptions):
    """The share of distinct n-grams: 1 when nothing repeats, near 0 for a text that loops."""

    unit: Literal["words", "chars"] = Field("words", description="Unit of an n-gram; use `chars` for Chinese.")
    n: int = Field(4, ge=1, le=50, description="Units per n-gram. A text with fewer units scores 1.")
    allowed: float = Field(0.0, ge=0, lt=1, description="Share of repeated n-grams up to which the score is 1.")


@scorer("repetition", Repetition)
def repetition(sample: Sample, options: Repetition) -> float:
    units = _units(sample.text, options.unit)
    total = len(units) - options.n + 1
    if total < 1:
        return 1.0
    different = len({hash(tuple(units[at : at + options.n])) for at in range(total)})
    repeated = 1 - different / total
    return 1.0 if repeated <= options.allowed else 1 - repeated


def _units(text: str, unit: str) -> list[str]:
    return text.split() if unit == "words" else text.splitlines() if unit == "lines" else list(text)


class Format(WholeOptions):
    """1 when the response has each tag exactly once, in the given order, closed and not empty; otherwise 0."""

    tags: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,30}$")], ...] = Field(
        ("think", "answer"), min_length=1, max_length=20, description="Names of the tags, in order."
    )
    text_outside: bool = Field(False, description="Whether text before, between and after the tags is allowed.")
    empty: bool = Field(False, description="Whether a tag may be empty.")
    opened_by_prompt: bool = Field(
        False, description="Whether the prompt ends with the first opening tag, so that the response lacks it."
    )

    @model_validator(mode="after")
    def _are_different(self) -> Self:
        if len(set(self.tags)) < len(self.tags):
            raise ValueError("`tags` must be distinct")
        return self


@scorer("format", Format)
def format_(sample: Sample, options: Format) -> float:
    text = f"<{options.tags[0]}>{sample.text}" if options.opened_by_prompt else sample.text
    at = 0
    for tag in options.tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            return 0.0
        start, end = text.find(opening), text.find(closing)
        inside = text[start + len(opening) : end]
        if not at <= start < end or not (options.empty or inside.strip()):
            return 0.0
        if text[at:start].strip() and not options.text_outside:
            return 0.0
        at = end + len(closing)
    return float(options.text_outside or not text[at:].strip())
