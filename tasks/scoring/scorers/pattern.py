"""`regex`: match a client's pattern. Uses the `regex` package, which can stop a match at a timeout."""

import re
from typing import Literal, Self

import regex
from pydantic import Field, field_validator, model_validator

from tasks.errors import CannotJudge
from tasks.scoring.scorer import Sample, WholeOptions, scorer

#: Maximum size of a pattern with its repeats expanded: `(?:x{9999}){9999}` would exhaust the memory of the web process.
MOST_EXPANDED = 100_000
_REPEAT = re.compile(r"(?P<of>.?)\{(?P<least>[0-9]{1,18})(?:,(?P<most>[0-9]{1,18}))?\}", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[a-zA-Z0-9-]*x")


class Regex(WholeOptions):
    """1 when the pattern matches; or, with `group`, when the group of the last match equals a reference.

    The syntax is that of the Python package `regex`. A match that takes too long fails the item as `regex_timeout`.
    """

    pattern: str = Field(min_length=1, max_length=2000, description="The pattern.")
    match: Literal["search", "start", "full"] = Field(
        "search", description="Where the pattern must match: anywhere, at the start, or the full text."
    )
    group: int | str | None = Field(
        None, description="Number or name of the group that is compared with the reference."
    )
    ignore_case: bool = Field(False, description="Flag `i`.")
    multiline: bool = Field(False, description="Flag `m`: `^` and `$` match at lines.")
    dot_all: bool = Field(False, description="Flag `s`: `.` matches a line break.")
    timeout_s: float = Field(1.0, gt=0, le=10, description="Timeout of a match, in seconds.")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        compile_pattern(value)
        return value

    @model_validator(mode="after")
    def _has_group(self) -> Self:
        compiled = self.compiled
        if isinstance(self.group, int) and not 0 <= self.group <= compiled.groups:
            raise ValueError(f"`group` {self.group} is not in the pattern, which has {compiled.groups} groups")
        if isinstance(self.group, str) and self.group not in compiled.groupindex:
            raise ValueError(f"`group` {self.group!r} is not in the pattern: name one with (?P<name>...)")
        return self

    @property
    def _flags(self) -> int:
        flags = (self.ignore_case, regex.IGNORECASE), (self.multiline, regex.MULTILINE), (self.dot_all, regex.DOTALL)
        return sum(int(flag) for is_set, flag in flags if is_set)

    @property
    def compiled(self) -> "regex.Pattern[str]":
        return compile_pattern(self.pattern, self._flags)  # the package caches compiled patterns


def _expanded_size(pattern: str) -> int:
    """Return an upper bound of the pattern's size after the package expands its exact repeats."""
    groups, atoms = 1, len(pattern)
    for repeat in _REPEAT.finditer(pattern):
        least, most = int(repeat["least"]), int(repeat["most"] or repeat["least"])
        if least == most and repeat["of"] == ")":
            groups *= max(1, most)
        elif least == most:
            atoms += most
    return groups * atoms


def compile_pattern(pattern: str, flags: int = 0) -> "regex.Pattern[str]":
    """Compile a pattern. Raises ValueError, with the position of the error, for an invalid pattern."""
    if _VERBOSE.search(pattern):
        raise ValueError("has the flag `x`, which is not supported: remove it")
    if _expanded_size(pattern) > MOST_EXPANDED:
        raise ValueError("repeats too much: nested `{n}` repeats are expanded when the pattern is compiled")
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
            "regex_timeout", f"The match timed out after {options.timeout_s} s: simplify the pattern."
        ) from None
    said = (last[options.group] or "").strip() if last else None
    return float(said in [reference.strip() for reference in sample.needed_references])


def _last(pattern: "regex.Pattern[str]", text: str, options: Regex) -> "regex.Match[str] | None":
    if options.match != "search":
        method = pattern.match if options.match == "start" else pattern.fullmatch
        return method(text, timeout=options.timeout_s)
    last = None
    for last in pattern.finditer(text, timeout=options.timeout_s):  # noqa: B007  # keeps the last match
        pass
    return last
