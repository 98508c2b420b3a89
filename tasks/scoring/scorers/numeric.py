"""`numeric_match`: compare the last number of a response with the reference. For sets and formulas see `math_equal`."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from pydantic import Field

from tasks.errors import CannotJudge
from tasks.scoring.latex import last_boxed
from tasks.scoring.numerals import Numeral, last_numeral
from tasks.scoring.scorer import Options, Sample, scorer


class NumericMatch(Options):
    r"""1 when the last number of the response equals the last number of a reference.

    A complete `\boxed{}` takes precedence over the text around it. The parser understands thousands separators,
    fractions and mixed numbers (`3/4`, `\frac{3}{4}`, `1 1/2`), scientific notation, percent and currency signs, the
    digits of other scripts, full-width digits, and any minus sign. Units are ignored, and `5 million` equals both `5`
    and `5,000,000`. `1,2,3` is three numbers, `1,234` is a single number.
    """

    tolerance: float = Field(1e-6, ge=0, description="Maximum absolute difference of the numbers.")
    relative_tolerance: float = Field(
        0.0, ge=0, description="Maximum difference as a share of the reference; the larger tolerance applies."
    )
    percent: Literal["as_number", "as_share", "either"] = Field(
        "as_number", description="Value of `75%`: 75, or 0.75, or either of them."
    )
    decimal_comma: bool = Field(
        False, description="Whether response and reference use a decimal comma, as in `1.234,5`."
    )


@scorer("numeric_match", NumericMatch)
def numeric_match(sample: Sample, options: NumericMatch) -> float:
    wanted = [_reference(reference, options) for reference in sample.needed_references]
    boxed = last_boxed(sample.text)
    found = last_numeral(sample.text if boxed is None else _joined_sign(boxed), options.decimal_comma)
    if found is None:
        return 0.0
    return float(any(_are_equal(found, reference, options) for reference in wanted))


def _reference(text: str, options: NumericMatch) -> Numeral:
    boxed = last_boxed(text)
    number = last_numeral(text if boxed is None else _joined_sign(boxed), options.decimal_comma)
    if number is None:
        raise CannotJudge("reference_unusable", f"The reference {text[:80]!r} contains no number: correct it.")
    return number


def _joined_sign(boxed: str) -> str:
    """Join a minus sign with its number: in a box `- 5` is a number, in running text it is an item of a list."""
    boxed = boxed.strip()
    return boxed[0] + boxed[1:].lstrip() if boxed[:1] in ("-", "−") else boxed


def _are_equal(found: Numeral, reference: Numeral, options: NumericMatch) -> bool:
    for wanted in _readings(reference, options):
        near = max(Fraction(options.tolerance), Fraction(options.relative_tolerance) * abs(wanted))
        if any(abs(value - wanted) <= near for value in _readings(found, options)):
            return True
    return False


def _readings(number: Numeral, options: NumericMatch) -> Iterator[Fraction]:
    for value in {number.value, number.value * number.scale}:
        if not number.is_percent or options.percent != "as_share":
            yield value
        if number.is_percent and options.percent != "as_number":
            yield value / 100
