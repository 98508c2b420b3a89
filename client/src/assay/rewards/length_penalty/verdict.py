"""Parses the verdict of a judge's reply: an integer on the scale, or None. It never guesses a verdict.

The verdict is the last score that the judge states as its own: in a JSON object, labelled as the score, or alone on the
last line. The parser ignores thinking and texts that the judge repeats with their fence. The server parses many more
forms and languages; if both find a verdict, it is the same, which a test of the project checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_TAG = r"(?:think|thinking|thought|reasoning|analysis|scratchpad)"
_OPEN = re.compile(rf"\s*(?:<{_TAG}>|◁think▷|\[THINK\])", re.IGNORECASE)
_CLOSE = re.compile(rf"(?:</{_TAG}>|◁/think▷|\[/THINK\])", re.IGNORECASE)
_BLOCKQUOTE = re.compile(r"(?m)^[ \t]*>.*$")
# A judged text that the judge repeats with its fence, in the form of `judge_prompt.py`.
_FENCED = re.compile(r"<<<([A-Z ]{1,40} [0-9a-f]{16})\n.*?(?<=\n)\1>>>", re.DOTALL)
# "score" must begin a line or clause: "clarity score" is a partial score, a score in quotation marks a quotation.
_CALLED = re.compile(
    r"(?:^|[.,;:!?。，；])[ \t*_#|-]*(?:(?:final|overall|total|my|the)[ ]|最终|综合|总体){0,2}"
    r"(?:score|rating|评分|得分)[ *_]*(?:[:：=]|[ ]is[ ])[ *_`\[(]*",
    re.IGNORECASE | re.MULTILINE,
)
_NUMBER = re.compile(r"(\d{1,6})(?:[ ]?/[ ]?(\d{1,6}))?(?=分?[*_`\])]*(?:[.;,!。，]?(?:\s|$)|[。，（]))")
_MORE = re.compile(r"[*_`\])]*[ ]?(?:-|–|—|~|to|or|of|out|percent|至|到|或|\d)[ ]?[\w/]", re.IGNORECASE)
_ALONE = re.compile(r"[ \t*_`#\[(]*(\d{1,6})(?:[ ]?/[ ]?(\d{1,6}))?[ \t*_`\]).!]*")


def read_verdict(text: str, low: int, high: int) -> int | None:
    said = _own_words(text)
    found: list[tuple[int, int | None]] = []
    rest = said
    for start, end, each in _objects(said):
        if "score" in each:
            found.append((start, _of_value(each["score"], low, high)))
        rest = rest[:start] + " " * (end - start) + rest[end:]  # texts inside the object are not verdicts
    for label in _CALLED.finditer(rest):
        number = _NUMBER.match(rest, label.end())
        if number and not _MORE.match(rest, number.end()):
            found.append((label.start(), _on_scale(number[1], number[2], low, high)))
    if found:
        return max(found, key=lambda each: each[0])[1]
    alone = _ALONE.fullmatch(rest.rstrip().rpartition("\n")[2])
    return _on_scale(alone[1], alone[2], low, high) if alone else None


def _own_words(text: str) -> str:
    """Remove thinking, blockquotes and fenced texts. An end tag of thinking inside a JSON text is a quotation."""
    text = _FENCED.sub(" ", text)
    quoted = [(start, end) for start, end, _ in _objects(text)]
    closes = [
        match.end() for match in _CLOSE.finditer(text) if not any(start < match.start() < end for start, end in quoted)
    ]
    if not closes and _OPEN.match(text):
        return ""
    return _BLOCKQUOTE.sub("", text[closes[-1] if closes else 0 :])


def _objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    decoder, place = json.JSONDecoder(strict=False), 0
    while (start := text.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            place = start + 1
            continue
        yield start, place, value


def _of_value(value: object, low: int, high: int) -> int | None:
    if isinstance(value, str) and (match := _ALONE.fullmatch(value)):
        return _on_scale(match[1], match[2], low, high)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if low <= value <= high and value == int(value) else None


def _on_scale(number: str, most: str | None, low: int, high: int) -> int | None:
    """Return the number if it is on the scale. A number out of a different maximum (4/5) is on a different scale."""
    return int(number) if low <= int(number) <= high and most in (None, str(high)) else None
