"""`choice_match`: compare the letter that a response chooses with the reference."""

import re
from functools import lru_cache
from typing import NamedTuple

from pydantic import Field, field_validator

from tasks.errors import CannotJudge
from tasks.scoring.latex import last_boxed, plain_latex
from tasks.scoring.scorer import Options, Sample, scorer

#: Full-width letters, brackets and colons of Chinese and Japanese texts, mapped to ASCII.
_NARROW = (
    {0xFF21 + n: chr(65 + n) for n in range(26)}
    | {0xFF41 + n: chr(97 + n) for n in range(26)}
    | {ord(wide): narrow for wide, narrow in zip("（）：【】［］＝", "():[][]=", strict=True)}
)
_ANSWER_WORDS = "answer|antwort|réponse|respuesta|risposta|resposta|ответ|答案|正解|解答|정답|选择|選擇|选|選"
_FILLER_WORDS = (
    r"\s|[*_:=(\[{\"'`>$]|is\b|are\b|be\b|would\b|should\b|must\b|the\b|correct\b|option\b|choice\b|letter\b"
    "|[是为為应該该項项は]"
)
_CONJUNCTION = r"(?:\s?(?:,|、|;|&|/|\band\b|\bor\b|和|或)\s?(?:and\s|or\s)?)"


class ChoiceMatch(Options):
    r"""1 when the response chooses the letter, or the letters, of a reference.

    These forms are tried in this order, and the last mention wins: a `\boxed{}`; "Answer: b", "the answer is (B)",
    "选B" and the like; a response of a single line that begins with "b)" or "B."; a capital letter that stands alone,
    as in "(B)" or "**B**". "A" and "I" before a word are words. "A or B" is two letters, and correct only if the
    reference has both.
    """

    choices: str = Field("ABCDE", min_length=2, max_length=26, description="The letters to choose from.")

    @field_validator("choices")
    @classmethod
    def _are_letters(cls, value: str) -> str:
        value = value.upper()
        if not re.fullmatch("[A-Z]+", value) or len(set(value)) < len(value):
            raise ValueError("must be distinct letters from A to Z, such as ABCD")
        return value


@scorer("choice_match", ChoiceMatch)
def choice_match(sample: Sample, options: ChoiceMatch) -> float:
    wanted = [_reference(reference, options.choices) for reference in sample.needed_references]
    return float(chosen_letters(sample.text, options.choices) in wanted)


def chosen_letters(text: str, choices: str) -> frozenset[str]:
    """Return the letters that the text chooses; empty when it chooses no letter."""
    text = text.translate(_NARROW)
    boxed = last_boxed(text)
    text = (text if boxed is None else plain_latex(boxed)).strip()
    patterns = _patterns(choices)
    if match := patterns.whole.fullmatch(text):
        return _letters(match)
    if match := _last(patterns.stated, text):
        return _letters(match)
    if "\n" not in text and (match := patterns.label.match(text)):
        return _letters(match)
    match = _last(patterns.alone, text)
    return _letters(match) if match else frozenset()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for last in pattern.finditer(text):  # noqa: B007  # keeps the last match
        pass
    return last


def _reference(text: str, choices: str) -> frozenset[str]:
    letters = chosen_letters(text, choices)
    if not letters:
        raise CannotJudge(
            "reference_unusable",
            f"The reference {text[:80]!r} names no letter of {choices}: correct it, or set the option `choices`.",
        )
    return letters


def _letters(match: re.Match[str]) -> frozenset[str]:
    run = re.sub(r"\b(?:and|or)\b", "", match["letters"], flags=re.IGNORECASE)
    return frozenset(letter for letter in run.upper() if letter.isascii() and letter.isalpha())


class _Patterns(NamedTuple):
    whole: re.Pattern[str]
    """Only the letters."""
    stated: re.Pattern[str]
    label: re.Pattern[str]
    """A line that begins with a letter, as in "b) Paris"."""
    alone: re.Pattern[str]


@lru_cache(maxsize=64)
def _patterns(choices: str) -> _Patterns:
    """Compile the patterns for a set of choices. Repetitions are bounded, so that matching takes linear time."""
    one, small = f"[{choices}]", f"[{choices.lower()}]"
    ends = "(?![A-Za-z0-9_])"
    no_word = r"(?!['’]|\s[a-z])"
    several = rf"{one}(?:[)\]*]{{0,3}}{_CONJUNCTION}[(\[*]{{0,3}}{one}{ends}){{1,9}}{no_word}"  # not "B and A is wrong"
    run = rf"{several}|{one}{one}{{0,9}}{ends}(?:(?<!I)|{no_word})"  # not "I am", "I'm"
    closing = r"(?=[\s*_`\"')\]}]{0,4}(?:$|[\n.,;:!?<]))"
    return _Patterns(
        whole=re.compile(rf"[(\[*_`\"'$]{{0,6}}(?P<letters>{run}|{small})[)\].:*_`\"'!$]{{0,6}}"),
        stated=re.compile(
            rf"(?i:{_ANSWER_WORDS})(?i:{_FILLER_WORDS}){{0,16}}?(?<![A-Za-z0-9])(?P<letters>{run}|{small}{ends}{closing})"
        ),
        label=re.compile(rf"[(\[*]{{0,3}}(?P<letters>{one}|{small})[)\].:]"),
        alone=re.compile(rf"(?<![A-Za-z0-9_'’])(?P<letters>{run})(?:(?<!A)|{no_word})"),  # not "A dog"
    )
