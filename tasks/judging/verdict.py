"""Parser of judge replies: returns the verdict, or raises an error with the reason. A verdict is never guessed.

Three forms are tried in this order; the first form with a match decides, and its last match in the reply counts:
1. a JSON object with a verdict, or a verdict with a label or a marker (`Score: 8`, `[[8]]`, `Winner: A`);
2. a verdict in a sentence ("I'd give it an 8/10", "Response A is better");
3. a verdict that stands alone on the last line.
Thinking and quotations are removed beforehand (see `reply_text.py`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks.errors import ReplyCut, ReplyFiltered, ReplyRefused, VerdictMissing
from tasks.judging.json_verdicts import objects, values_of
from tasks.judging.model import JudgeSpec, Mode
from tasks.judging.numeric_verdicts import NumberReader
from tasks.judging.reply_text import FoundVerdict, answer_text
from tasks.judging.word_verdicts import PAIRWISE, PASS_FAIL, WordReader
from tasks.providers.call import ApiReply

#: Version of this parser, part of the cache key: raise it when the same reply would give a different verdict.
VERSION = 2
#: Largest scale, in whole numbers, that a schema lists as an enum: more endpoints obey an enum than bounds.
MOST_LISTED = 101
#: Characters of a reply shown in an error.
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
    """On the scale; 1 or 0 for pass or fail; for a pair the preference for the response shown first: 1, 0.5 or 0."""
    rationale: str
    start: int
    """Offset of the verdict in the reply."""
    end: int


def reply_schema(mode: Mode, scale: tuple[float, float]) -> dict[str, Any]:
    """Return the JSON schema of a reply, for endpoints with structured output. The rationale comes first, so that the
    model reasons before it decides."""
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
    """Parse the verdict of a reply. Raises ReplyFiltered, ReplyRefused, ReplyCut or VerdictMissing."""
    if reply.finish_reason == "content_filter":
        raise ReplyFiltered
    if reply.refusal:
        raise ReplyRefused(f"The judge refused: {reply.refusal[:SHOWN]}")
    if reply.finish_reason == "length":
        raise ReplyCut
    return read_text(spec.mode, spec.scale, reply.text)


def read_text(mode: Mode, scale: tuple[float, float], text: str) -> Verdict:
    """Parse the verdict of a complete reply. Raises VerdictMissing or ReplyRefused."""
    answer, offset = answer_text(text)
    for verdicts in _verdicts_by_form(verdict_reader(mode, scale), answer):
        if verdicts:
            last = max(verdicts, key=lambda verdict: verdict.start)
            return replace(last, start=last.start + offset, end=last.end + offset)
    shown = text.strip()[-SHOWN:]
    if not answer.strip() and text.strip():
        raise VerdictMissing(f"The judge's reply contains only thinking or quotations; it ends: {shown}")
    if _REFUSALS.search(answer.strip()[: 2 * SHOWN]):
        raise ReplyRefused(f"The judge refused: {text.strip()[:SHOWN]}")
    raise VerdictMissing(
        f"No verdict could be parsed from the judge's reply; it ends: {shown}"
        if shown
        else "The judge's reply is empty."
    )


def verdict_reader(mode: Mode, scale: tuple[float, float]) -> NumberReader | WordReader:
    return PASS_FAIL if mode == "pass_fail" else PAIRWISE if mode == "pairwise" else NumberReader(*scale)


def _verdicts_by_form(reader: NumberReader | WordReader, answer: str) -> Iterator[list[Verdict]]:
    """Yield the verdicts of each form, from the most explicit form to the least."""
    in_objects: list[Verdict] = []
    rest = answer
    for found, start, end in objects(answer):
        value = reader.in_object(found)
        reasons = values_of(found, _RATIONALES)
        if value is not None:
            span = _value_span(answer, start, end)
            in_objects.append(Verdict(value, str(reasons[0]) if reasons else answer.strip(), *span))
        rest = rest[:start] + " " * (end - start) + rest[end:]  # a verdict quoted in the object's texts does not count
    yield in_objects + _verdicts(reader.labelled(rest, beside_object=bool(in_objects)), answer)
    yield _verdicts(reader.in_sentences(rest), answer)
    yield _verdicts(reader.alone_on_last_line(rest), answer)


def _verdicts(found: Sequence[FoundVerdict], answer: str) -> list[Verdict]:
    return [Verdict(verdict.value, answer.strip(), verdict.start, verdict.end) for verdict in found]


def _value_span(answer: str, start: int, end: int) -> tuple[int, int]:
    """Return the span of the value in a JSON object; the object's start when the value is nested or named otherwise."""
    found = list(_VALUE.finditer(answer, start, end))
    return found[-1].span("value") if found else (start, start)


def _numbers(low: float, high: float) -> dict[str, Any]:
    if isinstance(low, int) and isinstance(high, int) and high - low < MOST_LISTED:
        return {"type": "integer", "enum": list(range(low, high + 1))}
    return {"type": "number", "minimum": low, "maximum": high}
