"""`math_equal`: mathematical equality of two answers, computed by the package math-verify.

Runs isolated: its own timeout is a Python signal handler, which cannot interrupt the arithmetic of `9^{9^{9^9}}`.
"""

import logging
import re
from typing import Any

from pydantic import Field

from tasks.errors import CannotJudge
from tasks.scoring.latex import last_boxed
from tasks.scoring.numerals import normalize_digits
from tasks.scoring.scorer import LimitedOptions, Sample, scorer

#: Part of the cache key, as another release may score differently. A test checks it against the installed version.
VERSION = "1, math-verify 0.9.0"
#: Characters from the end of a response without a box that are searched for an answer.
TAIL = 4000
_DELIMITED = re.compile(r"[$\n]|\\boxed|\\fbox|\\\(|\\\[")
_CHINESE = re.compile("[\u3000-\u303f\u4e00-\u9fff\uff0c\uff1a]+")
_PROSE = re.compile(_DELIMITED.pattern + r"|(?<![\\A-Za-z])(?!(?:sin|cos|tan|log|exp|sqrt|inf)\b)[A-Za-z]{3,}")


class MathEqual(LimitedOptions):
    r"""1 when the answer is mathematically equal to a reference: numbers, expressions, sets, intervals, matrices.

    The answer is a complete `\boxed{}`, or else the last LaTeX or plain expression of the last 4,000 characters. `75%`
    equals 75 and 0.75, and `x = 5` equals `5`.
    """

    digits: int = Field(6, ge=0, le=15, description="Decimal places to which numbers are compared.")
    strict: bool = Field(
        True, description="Whether variables must have the same names, and sets their kind of brackets."
    )


@scorer("math_equal", MathEqual, isolated=True, cacheable=True, version=VERSION, cost_s=0.005)
def math_equal(sample: Sample, options: MathEqual) -> float:
    from math_verify import verify  # imports sympy: load it only in the child process

    wanted = [_reference(text) for text in sample.needed_references]
    said = _answer(sample.text)
    if not said:
        return 0.0
    return float(
        any(
            verify(reference, said, float_rounding=options.digits, strict=options.strict, timeout_seconds=None)
            for reference in wanted
        )
    )


def _answer(text: str) -> list[Any]:
    boxed = last_boxed(text)
    if boxed is None:  # math-verify searches numbers between spaces, but Chinese has no spaces between words
        text = _CHINESE.sub(" ", normalize_digits(text[-TAIL:]))
    if boxed is None and not _PROSE.search(text):
        boxed = text.strip().removesuffix(".")  # a bare formula: parsed as prose, `x+1` would yield only the 1
    return _parsed(text if boxed is None else f"\\boxed{{{boxed[:TAIL]}}}")


def _reference(text: str) -> list[Any]:
    """Parse a reference: a single line is the answer; several lines, such as a worked solution, end with the answer."""
    is_whole = not _DELIMITED.search(text)
    parsed = _parsed(f"\\boxed{{{text.strip()}}}" if is_whole else text)
    if not parsed:
        raise CannotJudge(
            "reference_unusable", f"The reference {text[:80]!r} cannot be parsed as mathematics: write plain or LaTeX."
        )
    return parsed


def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    for name in ("math_verify.parser", "math_verify.grader"):  # they warn that their own timeout is disabled
        logging.getLogger(name).setLevel(logging.ERROR)
    return list(parse(text, parsing_timeout=None))
