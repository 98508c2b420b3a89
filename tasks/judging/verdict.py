"""From a judge's reply to its verdict, or to the reason why there is none. A verdict is never guessed.

The ladder, first to last, the last find of a rung counting:
1. a JSON object with a verdict in it, or a verdict that is called or marked so (`Score: 8`, `[[8]]`, `Winner: A`);
2. one given in a sentence ("I'd give it an 8/10", "Response A is better");
3. one that is all the last line holds.
Thinking, and what the judge quotes, are no part of it (see `speech.py`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks.apis.call import ApiReply
from tasks.errors import ReplyCut, ReplyFiltered, ReplyRefused, VerdictMissing
from tasks.judging.marks import Marks
from tasks.judging.model import JudgeSpec, Mode
from tasks.judging.objects import objects, values_of
from tasks.judging.speech import Mark, own_words
from tasks.judging.words import PAIRWISE, PASS_FAIL, Words

#: Changes when the same reply would give another verdict: part of the cache key.
VERSION = 2
#: Whole numbers of a scale that are listed in a schema one by one, which more endpoints obey than bounds.
MOST_LISTED = 101
#: Characters of a reply that an error shows.
SHOWN = 200

_RATIONALES = frozenset(
    (
        "rationale",
        "reason",
        "reasons",
        "reasoning",
        "explanation",
        "feedback",
        "justification",
        "analysis",
        "理由",
        "分析",
    )
)
_VALUE = re.compile(r'"(?:score|rating|verdict|winner)"\s*:\s*"?(?P<value>[^\s",}]+)')
_REFUSALS = re.compile(
    r"""\b(?:I(?:['’]m|[ ]am)[ ](?:sorry|unable|not[ ]able)|I[ ](?:can(?:['’]t|not)|won['’]t|must[ ]decline|will[ ]not)
    |(?:can(?:['’]t|not)|unable[ ]to)[ ](?:assist|help|comply|provide|evaluate|judge)|lo[ ]siento|no[ ]puedo|désolée?
    |je[ ]ne[ ]peux[ ]pas|es[ ]tut[ ]mir[ ]leid|ich[ ]kann[ ](?:dabei|das|diese)|não[ ]posso|mi[ ]dispiace|извините)
    |抱歉|对不起|無法|无法(?:提供|评|协助|回答)|不能(?:提供|协助)|申し訳|できません|죄송|не[ ]могу""",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    value: float
    """On the scale; 1 or 0 for pass or fail; for a pair how much the first one shown is preferred: 1, 0.5 or 0."""
    rationale: str
    start: int
    """Where it stands in the reply."""
    end: int


def schema(mode: Mode, scale: tuple[float, float]) -> dict[str, Any]:
    """What a reply must look like, for endpoints that can hold a model to it. The reasons come first, so that they
    are reasons."""
    name, allowed = {
        "pass_fail": ("verdict", {"type": "string", "enum": ["pass", "fail"]}),
        "pairwise": ("winner", {"type": "string", "enum": ["A", "B", "tie"]}),
    }.get(mode, ("score", _numbers(*scale)))
    return {
        "type": "object",
        "properties": {"rationale": {"type": "string"}, name: allowed},
        "required": ["rationale", name],
        "additionalProperties": False,
    }


def read_reply(spec: JudgeSpec, reply: ApiReply) -> Verdict:
    """Raises ReplyFiltered, ReplyRefused, ReplyCut or VerdictMissing."""
    if reply.finish_reason == "content_filter":
        raise ReplyFiltered
    if reply.refusal:
        raise ReplyRefused(f"The judge refused: {reply.refusal[:SHOWN]}")
    if reply.finish_reason == "length":
        raise ReplyCut
    return read_text(spec.mode, spec.scale, reply.text)


def read_text(mode: Mode, scale: tuple[float, float], text: str) -> Verdict:
    """The verdict of a complete reply."""
    said, begins = own_words(text)
    for rung in _rungs(reader(mode, scale), said):
        if rung:
            last = max(rung, key=lambda verdict: verdict.start)
            return replace(last, start=last.start + begins, end=last.end + begins)
    shown = text.strip()[-SHOWN:]
    if not said.strip() and text.strip():
        raise VerdictMissing(f"The judge's reply has thinking in it, or quotes, and nothing else; it ends: {shown}")
    if _REFUSALS.search(said.strip()[: 2 * SHOWN]):
        raise ReplyRefused(f"The judge refused: {text.strip()[:SHOWN]}")
    raise VerdictMissing(
        f"No verdict could be read in the judge's reply; it ends: {shown}" if shown else "The judge's reply is empty."
    )


def reader(mode: Mode, scale: tuple[float, float]) -> Marks | Words:
    return PASS_FAIL if mode == "pass_fail" else PAIRWISE if mode == "pairwise" else Marks(*scale)


def _rungs(read: Marks | Words, said: str) -> Iterator[list[Verdict]]:
    found: list[Verdict] = []
    rest = said
    for each, start, end in objects(said):
        value = read.in_object(each)
        reasons = values_of(each, _RATIONALES)
        if value is not None:
            place = _place(said, start, end)
            found.append(Verdict(value, str(reasons[0]) if reasons else said.strip(), *place))
        rest = rest[:start] + " " * (end - start) + rest[end:]  # what its texts quote is no verdict
    yield found + _verdicts(read.explicit(rest, beside_object=bool(found)), said)
    yield _verdicts(read.told(rest), said)
    yield _verdicts(read.alone(rest), said)


def _verdicts(marks: Sequence[Mark], said: str) -> list[Verdict]:
    return [Verdict(mark.value, said.strip(), mark.start, mark.end) for mark in marks]


def _place(said: str, start: int, end: int) -> tuple[int, int]:
    """Of the value in a JSON object; of the object's beginning when it lies deeper or under another name."""
    found = list(_VALUE.finditer(said, start, end))
    return found[-1].span("value") if found else (start, start)


def _numbers(low: float, high: float) -> dict[str, Any]:
    if isinstance(low, int) and isinstance(high, int) and high - low < MOST_LISTED:
        return {"type": "integer", "enum": list(range(low, high + 1))}
    return {"type": "number", "minimum": low, "maximum": high}
