"""Cleaning of a judge's reply before it is parsed: cut off the thinking and blank out quotations.

Quotations become spaces of the same length, so that the offset of a verdict in the reply stays valid.
"""

import re
from dataclasses import dataclass

from tasks.judging.fence import blank_fenced
from tasks.judging.json_verdicts import objects
from tasks.scoring.numerals import normalize_digits

#: Characters parsed, counted from the end of the reply, where the verdict stands.
MOST_CHARS = 20_000

_TAG = r"(?:[a-z]+:)?(?:think|thinking|thought|thoughts|reasoning|analysis|scratchpad)"
_OPEN = re.compile(rf"\s*(?:<{_TAG}>|◁think▷|\[THINK\]|<\|channel\|>analysis)", re.IGNORECASE)
_CLOSE = re.compile(rf"(?:</{_TAG}>|◁/think▷|\[/THINK\]|<\|channel\|>final<\|message\|>)", re.IGNORECASE)
_BLOCKQUOTE = re.compile(r"(?m)^[ \t]*>.*$")
_QUOTE = re.compile(
    r"""(?<![\w"])"(?=\S)[^"\n]{1,500}"(?!\w) | “[^”\n]{1,500}” | „[^“”\n]{1,500}[“”] | «[^»\n]{1,500}»
    | 「[^」\n]{1,500}」 | 『[^』\n]{1,500}』 | ‘[^’\n]{1,500}’ | (?<![\w`])`[^`\n]{1,500}`(?!\w)
    | (?<![\w'])'(?=\S)[^'\n]{1,500}'(?!\w)""",
    re.VERBOSE,
)
_FRACTIONS = re.compile("([¼½¾⅐-⅞])")


@dataclass(frozen=True, slots=True)
class FoundVerdict:
    """A verdict with the span of its digits or letters in the reply."""

    value: float
    start: int
    end: int

    def moved(self, by: int) -> "FoundVerdict":
        return FoundVerdict(self.value, self.start + by, self.end + by)


def answer_text(reply: str) -> tuple[str, int]:
    """Return the reply's end after the thinking, and its offset in the reply.

    Quoted lines are blank, and the digits of every script are converted to ASCII digits.
    """
    cut = max(0, len(reply) - MOST_CHARS)
    text = _BLOCKQUOTE.sub(_blank, blank_fenced(reply[cut:]))
    end = _end_of_thinking(text)
    if not end and _OPEN.match(reply) and not _CLOSE.search(reply, 0, cut):
        end = len(text)  # the reply opens with thinking that never ends
    parts = _FRACTIONS.split(text[end:])
    plain = "".join(part if _FRACTIONS.match(part) else normalize_digits(part) for part in parts)
    return plain, cut + end


def without_quotes(text: str) -> str:
    """Blank out quotations inside sentences; keep a quoted whole line, and a quoted single word or number."""
    return _QUOTE.sub(lambda match: match.group() if _is_kept(match) else _blank(match), text)


def last_line(text: str) -> tuple[str, int]:
    """Return the last line that is not blank, and its offset."""
    line = text.rstrip().rpartition("\n")[2]
    return line, len(text.rstrip()) - len(line)


def _is_kept(match: re.Match[str]) -> bool:
    quoted = match.group()
    if not (re.search(r"\d|\s", quoted) and re.search(r"[^\W\d_]", quoted)):
        return True
    line_start = match.string.rfind("\n", 0, match.start()) + 1
    line_end = match.string.find("\n", match.end())
    around = match.string[line_start : match.start()] + match.string[match.end() : line_end if line_end >= 0 else None]
    return not re.search(r"\w", around)


def _end_of_thinking(text: str) -> int:
    """Return the offset after the last closing tag of thinking; a tag in a quotation or a JSON text is ignored."""
    for _, start, end in objects(text):
        text = text[:start] + " " * (end - start) + text[end:]
    closes = list(_CLOSE.finditer(_QUOTE.sub(_blank, text)))
    return closes[-1].end() if closes else 0


def _blank(match: re.Match[str]) -> str:
    return " " * len(match.group())
