"""Parser of a judge's prompt: finds the texts under judgement, the scale and the words of the verdict by their markers.

It parses Assay's own prompts (`<<<RESPONSE 0a1b` to `RESPONSE 0a1b>>>`) and the prompts of other tools: the text
between `<response>` and `</response>`, or tags with a similar word, or else the text below a heading such as
`### Reference answer:` or `[Response B]` until the next heading. A prompt without markers is one text. Not covered: a
line of a text that looks like a heading; use tags.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from workers.development_api.tokenizer import text_of

_REFERENCE = r"reference|expected|gold|ground[ _-]truth|correct[ _-]answer|target"
_RESPONSE = r"response|answer|completion|candidate|output|rival|assistant"
_FENCE = re.compile(rf"(?im)^<<<((?:(?P<reference>{_REFERENCE})|{_RESPONSE})\b[^\n<>]*)$")
_TAG = re.compile(rf"(?i)<((?:[a-z]+[_-])?(?:(?P<reference>{_REFERENCE})|{_RESPONSE})[\w-]*)[^<>\n]*>")
_HEADING = re.compile(
    rf"""(?imx) ^ (?P<bullet> [^\w\n]{{0,8}} )
    (?: (?:the|begin|end|start\ of|end\ of|model|model's|ai|student|student's|submitted) [\ _-] ){{0,3}}
    (?: (?P<reference>{_REFERENCE}) | {_RESPONSE} )
    (?P<rest>
      (?: [\ _-] (?:answer|response|solution|text|output|completion)\b )?
      (?: [\ _-]? (?:a|b|1|2|one|two|first|second)\b )?
      (?: 's\ (?:answer|response) )?
      (?: \ (?:to|under|being)\ \w+ )?
      (?: [\ _-]? (?: \([^()\n]{{1,40}}\) | [0-9a-f-]{{4,40}} ) )?
    )
    (?P<colon> [^\S\n]* [:\]=\#*`-]{{1,8}} [^\S\n]* )? (?P<line_end>$)?"""
)
_OTHER_HEADING = re.compile(r"(?m)^(?:#{1,6} |\[[^\]\n]{1,60}\]\s*$|={3,}|-{3,}\s*\w|#{3})")
_SECOND = re.compile(r"(?i)(?:\b|_)(?:b|2|two|second|rival)(?:\b|_)")
_END = re.compile(r"(?i)\W*(?:the )?end\b")
_SCALE = re.compile(
    r"(?i)\b(?:scale|scores?|rate|rating|grade|integer|number|between|from)\b[^\n.]{0,60}?"
    r"(-?\d+(?:\.\d+)?)\s*(?:-|–|to|and|through|\.\.)\s*(-?\d+(?:\.\d+)?)"
)
_LABEL = re.compile(
    r"(?i)\b((?:final |overall )?(?:score|rating|verdict|winner|grade|preference|decision|judge?ment|result))\**\s*:"
)
_PAIRS = re.compile(
    r"(?i)\b(pass|correct|yes|true|good|accept|acceptable)\b\W*(?:\s(?:or|and)\s|/|\|)\W*"
    r"(fail|incorrect|no|false|bad|reject|unacceptable)\b"
)
_TIE = re.compile(r"(?i)\b(tie|draw|equal)\b")
_CODE = re.compile(r"\b[0-9a-f]{8,40}\b")
_KEY = re.compile(r"\"(\w+)\"\s*:")


@dataclass(frozen=True, slots=True)
class Form:
    """Format of the verdict, as far as the prompt states it in words."""

    low: float = 1
    high: float = 10
    """The scale, from `low` to `high`."""
    label: str = ""
    """Label before the colon, such as `Score` or `Final verdict`; empty: the prompt names no label."""
    words: tuple[str, str] | None = None
    """The good and the bad word of a prompt that requests a choice of two words."""
    tie: str = ""
    """The word for a tie, if the prompt names it."""
    brackets: bool = False
    """Whether the verdict stands in double brackets: `Rating: [[5]]`."""
    keys: tuple[str, ...] = ()
    """Quoted names with a colon, for a JSON object."""
    wants_object: bool = False
    """Whether the prompt requests a JSON object."""


@dataclass(frozen=True, slots=True)
class Question:
    responses: tuple[str, ...]
    """One text, or the two texts of a comparison."""
    reference: str | None
    form: Form


def read_question(messages: Sequence[Mapping[str, Any]]) -> Question:
    texts = [text_of(message) for message in messages]
    users = [number for number, message in enumerate(messages) if message.get("role") == "user"] or [len(texts) - 1]
    for number in users:  # the first with marked texts: later messages may complain about a reply
        text = texts[number]
        marked = _between(text, _FENCE, "\n{}>>>") or _between(text, _TAG, "</{}")
        sections = marked or _headed(text)
        if any(not section.is_reference for section in sections):
            break
    else:
        number, text, sections = users[0], texts[users[0]], []
    form = read_form("\n".join([*texts[:number], _without(text, sections), *texts[number + 1 :]]))
    if form == Form() and sections and not marked:  # the format was parsed as part of the last text
        form = read_form("\n".join(texts))
    first, second, reference = (
        "\n".join(text[section.start : section.stop].strip("`\n ") for section in chosen)
        for chosen in (
            [section for section in sections if not section.is_reference and not section.is_second],
            [section for section in sections if not section.is_reference and section.is_second],
            [section for section in sections if section.is_reference],
        )
    )
    return Question(
        responses=(first, second) if first and second else (first or second or text,),
        reference=reference or None,
        form=form,
    )


def read_form(told: str) -> Form:
    """Parse the prompt without its texts under judgement. Between the items of a job only the code of the fence
    differs, so the result is cached."""
    if len(told) > MAX_REMEMBERED_CHARS:
        return _read_form(told)
    return _remembered_form(_CODE.sub("", told))


def _read_form(told: str) -> Form:
    scale, pair, tie = _SCALE.search(told), _PAIRS.search(told), _TIE.search(told)
    low, high = (float(scale[1]), float(scale[2])) if scale else (1.0, 10.0)
    keys = tuple(dict.fromkeys(_KEY.findall(told)))
    return Form(
        low=low if low < high else 1.0,
        high=high if low < high else 10.0,
        label=labels[-1] if (labels := _LABEL.findall(told)) else "",
        words=(pair[1], pair[2]) if pair else None,
        tie="C" if "[[C]]" in told else tie[1] if tie else "",
        brackets="[[" in told,
        keys=keys,
        wants_object="JSON" in told and bool(keys),
    )


#: Maximum prompt length for the cache of forms: it bounds the memory of the cache.
MAX_REMEMBERED_CHARS = 8192
_remembered_form = lru_cache(maxsize=256)(_read_form)


@dataclass(frozen=True, slots=True)
class _Section:
    start: int
    stop: int
    is_reference: bool
    is_second: bool


def _between(text: str, opening: re.Pattern[str], closing: str) -> list[_Section]:
    sections, position = [], 0
    while mark := opening.search(text, position):
        position = mark.end()
        if (stop := text.find(closing.format(mark[1]), position)) >= 0:
            sections.append(_Section(position, stop, bool(mark["reference"]), bool(_SECOND.search(mark[0]))))
            position = stop
    return sections


def _headed(text: str) -> list[_Section]:
    headings = [found for found in _HEADING.finditer(text) if found["colon"] or _stands_out(found)]
    ends = sorted(found.start() for found in (*headings, *_OTHER_HEADING.finditer(text)))
    sections = []
    for heading in headings:
        start = heading.end()
        stop = next((end for end in ends if end >= start), len(text))
        if text[start:stop].strip() and not _END.match(heading[0]):
            sections.append(_Section(start, stop, bool(heading["reference"]), bool(_SECOND.search(heading[0]))))
    return sections


def _stands_out(heading: re.Match[str]) -> bool:
    return bool(heading["bullet"].strip()) and heading["line_end"] is not None


def _without(text: str, sections: list[_Section]) -> str:
    bounds = [0, *(bound for section in sections for bound in (section.start, section.stop)), len(text)]
    return "".join(text[start:stop] for start, stop in zip(bounds[::2], bounds[1::2], strict=True))
