"""`regex`: a pattern of the client's. The `regex` package runs it, because it can stop a match that does not end."""

import re
from typing import Literal, Self

import regex
from pydantic import Field, field_validator, model_validator

from tasks.errors import CannotJudge
from tasks.scoring.scorer import Sample, WholeOptions, scorer

#: Parts of a pattern with its repeats written out. `(?:x{9999}){9999}` takes all memory, where the job is submitted.
MOST_EXPANDED = 100_000
_REPEAT = re.compile(r"(?P<of>.?)\{(?P<least>[0-9]{1,18})(?:,(?P<most>[0-9]{1,18}))?\}", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[a-zA-Z0-9-]*x")


class Regex(WholeOptions):
    """1 when the pattern matches; or, with `group`, when what the last match's group holds equals a reference.

    Patterns are those of the Python package `regex`. A match that takes too long fails the item as `regex_timeout`.
    """

    pattern: str = Field(min_length=1, max_length=2000, description="The pattern.")
    match: Literal["search", "start", "full"] = Field("search", description="Anywhere, from the start, or all of it.")
    group: int | str | None = Field(
        None, description="Number or name of the group that is compared with the reference."
    )
    ignore_case: bool = Field(False, description="Flag `i`.")
    multiline: bool = Field(False, description="Flag `m`: `^` and `$` match at lines.")
    dot_all: bool = Field(False, description="Flag `s`: `.` matches a line break.")
    timeout_s: float = Field(1.0, gt=0, le=10, description="Seconds a match may take.")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        compile_pattern(value)
        return value

    @model_validator(mode="after")
    def _has_group(self) -> Self:
        compiled = self.compiled
        if isinstance(self.group, int) and not 0 <= self.group <= compiled.groups:
            raise ValueError(f"`group` {self.group} is not in the pattern, which has {compiled.groups}")
        if isinstance(self.group, str) and self.group not in compiled.groupindex:
            raise ValueError(f"`group` {self.group!r} is not in the pattern")
        return self

    @property
    def _flags(self) -> int:
        flags = (self.ignore_case, regex.IGNORECASE), (self.multiline, regex.MULTILINE), (self.dot_all, regex.DOTALL)
        return sum(int(flag) for is_set, flag in flags if is_set)

    @property
    def compiled(self) -> "regex.Pattern[str]":
        return compile_pattern(self.pattern, self._flags)  # the package remembers what it compiled


def _expanded(pattern: str) -> int:
    """What the pattern's size is at most when exact repeats are written out, as the package does."""
    groups, atoms = 1, len(pattern)
    for repeat in _REPEAT.finditer(pattern):
        least, most = int(repeat["least"]), int(repeat["most"] or repeat["least"])
        if least == most and repeat["of"] == ")":
            groups *= max(1, most)
        elif least == most:
            atoms += most
    return groups * atoms


def compile_pattern(pattern: str, flags: int = 0) -> "regex.Pattern[str]":
    """Raises ValueError, with the place, for a pattern that is none."""
    if _VERBOSE.search(pattern):
        raise ValueError("has the flag `x`, which is not supported")
    if _expanded(pattern) > MOST_EXPANDED:
        raise ValueError("repeats too much: `{n}` inside `{n}` is written out when it is compiled")
    try:
        return regex.compile(pattern, flags)
    except regex.error as error:
        raise ValueError(f"is not a valid pattern: {error}") from error
    except (RecursionError, OverflowError, MemoryError) as error:
        raise ValueError("is too deeply nested, or too large") from error


@scorer("regex", Regex)
def regex_(sample: Sample, options: Regex) -> float:
    pattern = options.compiled
    try:
        if options.group is None:
            method = {"search": pattern.search, "start": pattern.match, "full": pattern.fullmatch}[options.match]
            return float(method(sample.text, timeout=options.timeout_s) is not None)
        last = _last(pattern, sample.text, options)
    except TimeoutError:
        raise CannotJudge(
            "regex_timeout", f"The pattern did not come to an end within {options.timeout_s} s."
        ) from None
    said = (last[options.group] or "").strip() if last else None
    return float(said in [reference.strip() for reference in sample.needed_references])


def _last(pattern: "regex.Pattern[str]", text: str, options: Regex) -> "regex.Match[str] | None":
    if options.match != "search":
        method = pattern.match if options.match == "start" else pattern.fullmatch
        return method(text, timeout=options.timeout_s)
    last = None
    for last in pattern.finditer(text, timeout=options.timeout_s):  # noqa: B007  # the last one is what is wanted
        pass
    return last
