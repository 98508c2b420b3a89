"""Reader of numeric verdicts as judges write them: `Score: 8`, `**8/10**`, `[[8]]`, "I'd give it an 8", and the like.

A number counts as a verdict only where the text declares it. Ranges, numbers of a different scale ("4/5" where the
maximum is 10), percentages and numbers outside the scale are ignored. Not covered: number words ("eight"), letters
and stars.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tasks.judging.json_verdicts import values_of
from tasks.judging.reply_text import FoundVerdict, last_line, without_quotes
from tasks.judging.vocabulary import AFTER_GIVEN, FINAL, GIVE, GIVEN, IS, LOOSE_SCORE, NEUTRAL, OUT_OF, SCORE, TO

#: Field names of the number in a JSON verdict.
KEYS = frozenset(
    (
        "score",
        "rating",
        "grade",
        "overall",
        "overall_score",
        "final_score",
        "overall_rating",
        "final_rating",
        "verdict",
        "评分",
        "得分",
        "分数",
        "总分",
        "スコア",
        "評価",
        "점수",
        "оценка",
        "bewertung",
        "note",
        "nota",
        "puntuación",
    )
)
#: Characters before and after a number in which a label or a marker is searched.
CONTEXT_CHARS = 120
#: Maximum numbers examined, counted from the end of the reply.
MOST_NUMBERS = 500

_FRACTIONS = {"¼": 0.25, "½": 0.5, "¾": 0.75, " 1/2": 0.5}
_FLAGS = re.VERBOSE | re.IGNORECASE
_NUMBER = re.compile(
    rf"""(?<![A-Za-zÀ-ɏ0-9_.])(?<!\d[.,/:])
    (?P<sign>(?<!\w)[-+])?(?P<digits>\d{{1,6}}(?:[.,]\d{{1,4}})?)(?P<fraction>[¼½¾]|[ ]1/2(?![\d/]))?
    (?:[*_`\])"”]{{0,4}}{OUT_OF}[*_`(\[]{{0,4}}(?P<most>\d{{1,6}}(?:\.\d{{1,4}})?))?
    (?!\d|[.,/:]\d)""",
    _FLAGS,
)
_PIECE_AFTER = re.compile(rf"[%+±°]|[ ]%|(?!pts|points?\b)[A-Za-z]|[ ]?{TO}[ ]?\d", _FLAGS)
_RANGE_BEFORE = re.compile(rf"\d[ ]?{TO}[ ]?\Z", _FLAGS)
_CLAUSE_END = re.compile(r"[*_`\])\"'”»]{0,4}\s*(?:$|[\n.;!|]|,\s)")
_LABEL_BEFORE = re.compile(
    rf"""(?<![^\W_])(?:{SCORE}|(?P<loose>{LOOSE_SCORE}))(?P<final>[ ]{FINAL})?
    (?:[ ]?[(（\[][^()（）\n]{{0,40}}[)）\]])?
    (?:[ ](?:on|from|out[ ]of|for|von|sur|auf)[ ][^:：\n]{{1,60}}(?=[:：]))?
    (?:[^\w\n]{{0,12}}(?:{IS}(?![^\W_]))?[^\w\n]{{0,12}}(?:an?[ ])?
      |[^\w\n]{{0,6}}(?P<next_line>\n)\s{{0,4}}[^\w\n]{{0,6}})\Z""",
    _FLAGS,
)
# Scripts without spaces between words have no word boundary to match.
_CJK_LABEL_BEFORE = re.compile(
    rf"(?<![A-Za-zÀ-ӿ])(?:{SCORE}|(?P<loose>{LOOSE_SCORE}))[^\w\n]{{0,8}}{IS}?[^\w\n]{{0,8}}\Z", _FLAGS
)
_PRIOR = re.compile(r"([^\W\d_]+(?:['’]s)?)[ *_]{0,4}\Z")
_OPENED = re.compile(r"(?:\[\[|\\boxed\{|<(?:score|rating|grade|verdict|result)>|\[RESULT\])\s{0,4}\Z", re.IGNORECASE)
_CLOSED = re.compile(r"\s{0,4}(?:\]\]|\}|</|[\s.]|$)")
_GIVEN_BEFORE = re.compile(rf"(?<![^\W_]){GIVE}(?:[ ]{GIVEN})+[^\w\n]{{1,6}}\Z", _FLAGS)
_AFTER_GIVEN = re.compile(rf"[*_`\])]{{0,4}}[ ]?(?:[.,;:!)\n]|$|{AFTER_GIVEN}(?!\w))", _FLAGS)
_NAME_BEFORE = re.compile(r"\w[^\n:：|]{0,30}[:：|][^\w\n]{0,6}\Z")
_CJK_GIVEN_BEFORE = re.compile(r"(?:打|给|給|得|评为|評為)[^\d\n，。,.;；扣]{0,12}\Z")
_MOST_BEFORE = re.compile(
    r"(?P<most>\d{1,6})[ ]?(?:点満点|分満点|점[ ]?만점|分满分|分制)(?:中|で|에|[,，、])?[^\d\n]{0,6}\Z"
)
_POINTS_AFTER = re.compile(r"[ ]?[分点점]")
_ALONE = re.compile(r"[^\w\n]{0,6}(?:分|点|점|points?|pts)?[^\w\n%+]{0,6}$", re.IGNORECASE)

Scope = Literal["final", "whole", "part"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number on the scale, with the text before and after it."""

    verdict: FoundVerdict
    before: str
    after: str
    has_maximum: bool
    """Whether the scale's maximum is written with it, as in `8/10`."""

    @property
    def scope(self) -> Scope | None:
        """Scope of the score that the label before this number names; None without a label."""
        match = _LABEL_BEFORE.search(self.before) or _CJK_LABEL_BEFORE.search(self.before)
        if not match or (match["loose"] and not (self.has_maximum or _CLAUSE_END.match(self.after))):
            return None
        if match.groupdict().get("next_line") and not re.match(r"[^\w\n]{0,8}(?:\n|$)", self.after):
            return None  # "Score" is a heading above a numbered list
        if match.groupdict().get("final"):
            return "final"
        prior = _PRIOR.search(self.before, 0, match.start())
        if not prior:
            return "whole"
        if re.search(rf"(?<![^\W\d_]){FINAL}$|(?:{FINAL})$(?<![A-Za-z])", prior[1], re.IGNORECASE):
            return "final"
        is_neutral = re.fullmatch(NEUTRAL, prior[1], re.IGNORECASE) or prior[1].endswith("的")
        return "whole" if is_neutral else "part"

    @property
    def is_marked(self) -> bool:
        return bool(_OPENED.search(self.before) and _CLOSED.match(self.after))

    @property
    def is_in_sentence(self) -> bool:
        if self.has_maximum or (_GIVEN_BEFORE.search(self.before) and _AFTER_GIVEN.match(self.after)):
            return True
        return bool(_CJK_GIVEN_BEFORE.search(self.before) and _POINTS_AFTER.match(self.after))

    @property
    def is_named(self) -> bool:
        """Whether a name precedes the number, as in "grammar: 6/10"."""
        return bool(_NAME_BEFORE.search(self.before))

    @property
    def is_alone(self) -> bool:
        return not re.search(r"\w", self.before) and bool(_ALONE.fullmatch(self.after))


class NumberReader:
    """Finds the verdicts of a numeric scale in a reply."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high

    def in_object(self, found: dict[str, Any]) -> float | None:
        """Return the number of a JSON verdict; None when the number is not on the scale, or several numbers differ."""
        values = {self._parse_field(value) for value in values_of(found, KEYS)}
        return values.pop() if len(values) == 1 else None

    def labelled(self, text: str, beside_object: bool = False) -> list[FoundVerdict]:
        """Find numbers with a label or a marker; `beside_object`: the reply also has a JSON verdict."""
        whole: list[FoundVerdict] = []
        parts: list[FoundVerdict] = []
        is_final = False
        for number in self._numbers(without_quotes(text)):
            scope = "whole" if number.is_marked else number.scope
            if scope == "part":
                parts.append(number.verdict)
            elif scope:
                whole, parts, is_final = [number.verdict], [], scope == "final"
        # "Clarity score: 9, accuracy score: 6" is no verdict; "helpfulness score: 8" alone is a verdict.
        if not whole:
            return parts if not beside_object and len({part.value for part in parts}) == 1 else []
        return whole if is_final or not parts else []

    def in_sentences(self, text: str) -> list[FoundVerdict]:
        """Find numbers that a sentence gives as the score, or that name the scale's maximum."""
        numbers = [number for number in self._numbers(without_quotes(text)) if number.is_in_sentence]
        parts = {number.verdict.value for number in numbers if number.is_named}
        if len(parts) > 1 and numbers[-1].is_named:  # "Style: 8/10, grammar: 6/10" is no verdict
            return []
        return [number.verdict for number in numbers]

    def alone_on_last_line(self, text: str) -> list[FoundVerdict]:
        """Find the number that is the whole content of the last line."""
        line, offset = last_line(text)
        return [number.verdict.moved(offset) for number in self._numbers(line) if number.is_alone]

    def value(self, word: str) -> float | None:
        """Return the value of a model token: a whole number on the scale, else None."""
        value = float(word) if re.fullmatch(r"\d{1,6}", word.strip()) else None
        return value if value is not None and self._low <= value <= self._high else None

    def _parse_field(self, value: object) -> float | None:
        if isinstance(value, str):
            return next((verdict.value for verdict in self.alone_on_last_line(value.strip())), None)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if self._low <= value <= self._high else None

    def _numbers(self, text: str) -> Iterator[Number]:
        for match in deque(_NUMBER.finditer(text), MOST_NUMBERS):
            before = text[max(0, match.start() - CONTEXT_CHARS) : match.start()]
            after = text[match.end() : match.end() + CONTEXT_CHARS]
            if _PIECE_AFTER.match(after) or _RANGE_BEFORE.search(before):
                continue
            points = _POINTS_AFTER.match(after)
            most = match["most"] or (found["most"] if points and (found := _MOST_BEFORE.search(before)) else None)
            value = float(match["digits"].replace(",", ".")) + _FRACTIONS.get(match["fraction"] or "", 0.0)
            if match["sign"] == "-":
                value = -value
            if self._low <= value <= self._high and (most is None or float(most) == self._high):
                yield Number(FoundVerdict(value, *match.span("digits")), before, after, most is not None)
