"""What of a reply the judge itself says: its thinking is cut off, and what it quotes is blanked out.

Quotes become spaces of the same length, so that the place of a verdict in the reply stays known.
"""

import re
from dataclasses import dataclass

from tasks.judging.fence import without_fenced
from tasks.judging.objects import objects
from tasks.scoring.numerals import with_plain_digits

#: Characters from a reply's end that are read; the verdict stands last.
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
class Mark:
    """A verdict, and where its digits or letters stand in the reply."""

    value: float
    start: int
    end: int

    def moved(self, by: int) -> "Mark":
        return Mark(self.value, self.start + by, self.end + by)


def own_words(reply: str) -> tuple[str, int]:
    """The end of the reply, with quoted lines blank and digits of all scripts as ASCII has them; and where in the
    reply it begins."""
    cut = max(0, len(reply) - MOST_CHARS)
    text = _BLOCKQUOTE.sub(_blank, without_fenced(reply[cut:]))
    end = _end_of_thinking(text)
    if not end and _OPEN.match(reply) and not _CLOSE.search(reply, 0, cut):
        end = len(text)  # thinking that opens a reply may be without an end
    parts = _FRACTIONS.split(text[end:])
    plain = "".join(part if _FRACTIONS.match(part) else with_plain_digits(part) for part in parts)
    return plain, cut + end


def without_quotes(text: str) -> str:
    """Blank is what stands in quotation marks inside a sentence: not a line of its own, nor a lone word or number."""
    return _QUOTE.sub(lambda match: match.group() if _is_own(match) else _blank(match), text)


def last_line(text: str) -> tuple[str, int]:
    """The last line that is not blank, and where it begins."""
    line = text.rstrip().rpartition("\n")[2]
    return line, len(text.rstrip()) - len(line)


def _is_own(match: re.Match[str]) -> bool:
    quoted = match.group()
    if not (re.search(r"\d|\s", quoted) and re.search(r"[^\W\d_]", quoted)):
        return True
    line_start = match.string.rfind("\n", 0, match.start()) + 1
    line_end = match.string.find("\n", match.end())
    around = match.string[line_start : match.start()] + match.string[match.end() : line_end if line_end >= 0 else None]
    return not re.search(r"\w", around)


def _end_of_thinking(text: str) -> int:
    """A tag that is quoted, or stands in a JSON text, is somebody else's: what follows it is no new beginning."""
    for _, start, end in objects(text):
        text = text[:start] + " " * (end - start) + text[end:]
    closes = list(_CLOSE.finditer(_QUOTE.sub(_blank, text)))
    return closes[-1].end() if closes else 0


def _blank(match: re.Match[str]) -> str:
    return " " * len(match.group())
