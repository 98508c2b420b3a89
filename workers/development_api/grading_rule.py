"""Grading rule of the development API, and the probabilities from which its verdict words are sampled.

A text's grade lies between 0 and 1. If the prompt has a reference, the grade is 1 if the text contains the reference,
else 0; without a reference it is a checksum of the text. A score is the grade's position on the scale; the good word is
chosen for grades of one half or more; of two texts the text with the higher grade wins, in either order, and equal
grades are a tie. At temperature 0 the most probable word is chosen, else a word is sampled by the probabilities, which
log-probabilities also show.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from workers.development_api.prompt_parser import Question

#: Standard deviation, in steps of the scale, of the probabilities of a score.
SPREAD = 0.7
#: Probability of the word that the rule gives, for verdicts in words.
SURE = 0.9
#: Maximum steps of a scale, and maximum steps with a probability.
MAX_STEPS = 1000
MAX_ODDS = 21

_GOOD = {"pass", "passed", "correct", "yes", "true", "good", "accept", "acceptable", "1"}
_BAD = {"fail", "failed", "incorrect", "no", "false", "bad", "reject", "unacceptable", "0"}
_FIRST = {"a", "first", "1", "response_a", "response a", "assistant_a", "assistant a", "left", "one"}
_SECOND = {"b", "second", "2", "response_b", "response b", "assistant_b", "assistant b", "right", "two"}
#: Names of a field that stand for the whole judgement rather than for a single criterion.
_WHOLE = {"score", "rating", "grade", "overall", "total", "verdict", "winner", "preference", "value", "result"}


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a reply, with the probabilities from which it was sampled."""

    text: str
    odds: Mapping[str, float]


class Judge:
    """One judgement: deterministic for equal questions, unless it is sampled."""

    def __init__(self, question: Question, temperature: float, chance: random.Random, biased: bool = False) -> None:
        self._question = question
        self.form = question.form
        self.is_comparison = len(question.responses) == 2
        self._temperature = temperature
        self._chance = chance
        self._biased = biased

    def grade(self, name: str = "") -> float:
        """Return the grade of the (first) text; if `name` is a criterion, its grade by this criterion."""
        return _grade(self._question.responses[0], self._question.reference, "" if name.lower() in _WHOLE else name)

    def because(self) -> str:
        question = self._question
        if self.is_comparison:
            grades = [_grade(text, question.reference, "") for text in question.responses]
            return f"By the rule the first text is worth {grades[0]:.2f} of 1, the second {grades[1]:.2f}."
        if question.reference is not None:
            return f"The text {'holds' if self.grade() else 'does not hold'} the reference."
        return f"A checksum of the text says {self.grade():.2f} of 1."

    def number(self, low: float, high: float, name: str = "", whole: bool = False) -> Word:
        step = 1.0 if whole or high - low > 1 else max((high - low) / 10, 1e-9)
        step *= max(1, math.ceil((high - low) / step / MAX_STEPS))
        return self.step([_plain(low + index * step) for index in range(int((high - low) / step + 1e-6) + 1)], name)

    def step(self, words: Sequence[str], name: str = "") -> Word:
        """Choose a step, from worst to best. Every step is equally likely over many texts; the probabilities decrease
        with the distance from the text's step."""
        place = self.grade(name) * len(words) - 0.5
        nearest = min(len(words) - 1, max(0, round(place)))
        first = max(0, nearest - MAX_ODDS // 2)
        near = enumerate(words[first : first + MAX_ODDS], first)
        return self._choose({word: math.exp(-((index - place) ** 2) / (2 * SPREAD**2)) for index, word in near})

    def either(self, good: str, bad: str, name: str = "") -> Word:
        likelihood = SURE if self.grade(name) >= 0.5 else 1 - SURE
        return self._choose({good: likelihood, bad: 1 - likelihood})

    def winner(self, first: str, second: str, tie: str = "") -> Word:
        one, other = (_grade(text, self._question.reference, "") for text in self._question.responses[:2])
        best = first if self._biased or one > other else second if other > one else tie or first
        words = [word for word in (first, second, tie) if word]
        return self._choose({word: SURE if word == best else (1 - SURE) / (len(words) - 1) for word in words})

    def one_of(self, words: Sequence[str], name: str = "") -> Word:
        """Choose a word of a list: by the meaning of the words if known, else by their order, the best word last."""
        known = {word.lower(): word for word in words}
        first, second = _member(known, _FIRST), _member(known, _SECOND)
        if self.is_comparison and first and second:
            return self.winner(first, second, next((word for word in words if word not in (first, second)), ""))
        good, bad = _member(known, _GOOD), _member(known, _BAD)
        if len(words) == 2 and good and bad:
            return self.either(good, bad, name)
        return self.step(words, name)

    def _choose(self, odds: Mapping[str, float]) -> Word:
        total = sum(odds.values())
        odds = {word: weight / total for word, weight in sorted(odds.items(), key=lambda pair: -pair[1])}
        if self._temperature <= 0:
            return Word(next(iter(odds)), odds)
        weights = [weight ** (1 / self._temperature) for weight in odds.values()]
        return Word(self._chance.choices(list(odds), weights)[0], odds)


def _grade(text: str, reference: str | None, criterion: str) -> float:
    if reference is not None:
        return float(_folded(reference) in _folded(text))
    return crc32(f"{criterion}\0{text.strip()}".encode(errors="replace")) / 2**32


def _folded(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()


def _member(words: Mapping[str, str], known: set[str]) -> str:
    return next((word for folded, word in words.items() if folded in known), "")


def _plain(number: float) -> str:
    return f"{round(number, 2):g}"
