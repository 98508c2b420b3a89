"""Numbers that are verdicts, as judges write them: `Score: 8`, `**8/10**`, `[[8]]`, "I'd give it an 8", and the like.

A number is one only where it is said to be. A range, a number of another scale ("4/5" where 10 is the most), a
percentage or a place outside the scale is none. Not covered: number words ("eight"), letters and stars.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tasks.judging.objects import values_of
from tasks.judging.speech import Mark, last_line, without_quotes
from tasks.judging.vocabulary import AFTER_GIVEN, FINAL, GIVE, GIVEN, IS, LOOSE_SCORE, NEUTRAL, OUT_OF, SCORE, TO

#: Names of a JSON verdict's number.
KEYS = frozenset(
    ("score", "rating", "grade", "overall", "overall_score", "final_score", "overall_rating", "final_rating", "verdict",
     "评分", "得分", "分数", "总分", "スコア", "評価", "점수", "оценка", "bewertung", "note", "nota", "puntuación")
)  # fmt: skip
#: Characters before a number that may say what it is, and numbers from the end that are looked at.
NEAR, MOST_NUMBERS = 120, 500

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
# Scripts without spaces between words have no edge to look for.
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

Standing = Literal["final", "whole", "part"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number on the scale, with the text that stands before and after it."""

    mark: Mark
    before: str
    after: str
    has_most: bool
    """Whether it was given out of the scale's most, as in `8/10`."""

    @property
    def standing(self) -> Standing | None:
        """Whose score it is called; None when it is not called one."""
        match = _LABEL_BEFORE.search(self.before) or _CJK_LABEL_BEFORE.search(self.before)
        if not match or (match["loose"] and not (self.has_most or _CLAUSE_END.match(self.after))):
            return None
        if match.groupdict().get("next_line") and not re.match(r"[^\w\n]{0,8}(?:\n|$)", self.after):
            return None  # "Score" as a heading, and under it a numbered list
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
    def is_told(self) -> bool:
        if self.has_most or (_GIVEN_BEFORE.search(self.before) and _AFTER_GIVEN.match(self.after)):
            return True
        return bool(_CJK_GIVEN_BEFORE.search(self.before) and _POINTS_AFTER.match(self.after))

    @property
    def is_named(self) -> bool:
        """Whether it is somebody's or something's number: "grammar: 6/10"."""
        return bool(_NAME_BEFORE.search(self.before))

    @property
    def is_alone(self) -> bool:
        return not re.search(r"\w", self.before) and bool(_ALONE.fullmatch(self.after))


class Marks:
    """The numbers of one scale: how they are found."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high

    def in_object(self, found: dict[str, Any]) -> float | None:
        """The number of a JSON verdict; None when it has none on the scale, or several that differ."""
        values = {self._of_value(value) for value in values_of(found, KEYS)}
        return values.pop() if len(values) == 1 else None

    def explicit(self, text: str, beside_object: bool = False) -> list[Mark]:
        """Numbers that are called the score, or marked as it; `beside_object`: of a reply that has a JSON verdict."""
        whole: list[Mark] = []
        parts: list[Mark] = []
        is_final = False
        for number in self._numbers(without_quotes(text)):
            standing = "whole" if number.is_marked else number.standing
            if standing == "part":
                parts.append(number.mark)
            elif standing:
                whole, parts, is_final = [number.mark], [], standing == "final"
        # "Clarity score: 9, accuracy score: 6" is no verdict; "helpfulness score: 8" on its own is one.
        if not whole:
            return parts if not beside_object and len({mark.value for mark in parts}) == 1 else []
        return whole if is_final or not parts else []

    def told(self, text: str) -> list[Mark]:
        """Numbers that are given in a sentence, or out of the scale's most."""
        numbers = [number for number in self._numbers(without_quotes(text)) if number.is_told]
        parts = {number.mark.value for number in numbers if number.is_named}
        if len(parts) > 1 and numbers[-1].is_named:  # "Style: 8/10, grammar: 6/10" is no verdict
            return []
        return [number.mark for number in numbers]

    def alone(self, text: str) -> list[Mark]:
        """The number that is all the last line holds."""
        line, begins = last_line(text)
        return [number.mark.moved(begins) for number in self._numbers(line) if number.is_alone]

    def value(self, word: str) -> float | None:
        """What one token is worth: a whole number on the scale."""
        value = float(word) if re.fullmatch(r"\d{1,6}", word.strip()) else None
        return value if value is not None and self._low <= value <= self._high else None

    def _of_value(self, value: object) -> float | None:
        if isinstance(value, str):
            return next((mark.value for mark in self.alone(value.strip())), None)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if self._low <= value <= self._high else None

    def _numbers(self, text: str) -> Iterator[Number]:
        for match in deque(_NUMBER.finditer(text), MOST_NUMBERS):
            before = text[max(0, match.start() - NEAR) : match.start()]
            after = text[match.end() : match.end() + NEAR]
            if _PIECE_AFTER.match(after) or _RANGE_BEFORE.search(before):
                continue
            points = _POINTS_AFTER.match(after)
            most = match["most"] or (found["most"] if points and (found := _MOST_BEFORE.search(before)) else None)
            value = float(match["digits"].replace(",", ".")) + _FRACTIONS.get(match["fraction"] or "", 0.0)
            if match["sign"] == "-":
                value = -value
            if self._low <= value <= self._high and (most is None or float(most) == self._high):
                yield Number(Mark(value, *match.span("digits")), before, after, most is not None)
