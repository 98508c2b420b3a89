"""Parser of numbers as people and models write them: finds them in a text and converts them exactly, in linear time.

Not covered: number words ("five"), roots and powers of anything but numbers, Indian grouping (1,00,000).
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from tasks.scoring.latex import plain_latex

#: Maximum digits of a parsed number; a longer number is no answer, and its conversion takes quadratic time.
MOST_DIGITS = 400

_ZEROS = (0x0660, 0x06F0, 0x0966, 0x09E6, 0x0E50, 0xFF10)  # Arabic, Persian, Devanagari, Bengali, Thai, full width
_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_TRANSLATION = (
    {zero + digit: str(digit) for zero in _ZEROS for digit in range(10)}
    | dict.fromkeys(map(ord, "−–‐‑﹣－"), "-")
    | dict.fromkeys(map(ord, "⁄∕／"), "/")
    | {ord("％"): "%", ord("٪"): "%", ord("．"): ".", ord("٫"): ".", ord("٬"): ",", ord("＋"): "+", ord("＄"): "$"}
    | {ord(sign): " " + unicodedata.normalize("NFKC", sign).replace("⁄", "/") for sign in _VULGAR}
)
_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]{1,3}(?:[\u00a0\u2009\u202f][0-9]{3})++(?![0-9])|[0-9]++)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]++)?|(?<![0-9A-Za-z.])\.[0-9]++)"
# Groups are atomic and quantifiers possessive: no backtracking, and no part of a longer number matches as a number.
_NUMBER = re.compile(
    rf"""
    (?=[-+.0-9])                                    # skips most characters at once
    (?<!\^)(?<!\^\{{)(?<!√)(?<!√\{{)                # an exponent or a radicand is part of another number
    (?:
      (?<![A-Za-z0-9_)\]}}])(?P<sign>[-+])[$€£¥₹]?   # a sign, not a dash between words nor a subtraction
      |(?<![A-Za-z0-9_])|(?<=USD)|(?<=EUR)|(?<=GBP)|(?<=Rs)|(?<=RM)
    )
    (?<![0-9]\.)(?<![0-9]/)
    (?>
      (?P<mixed>[0-9]++)[ ](?P<top>[0-9]++)/(?P<bottom>[0-9]++)(?![0-9/.])
      |(?P<number>{_DECIMAL})
       (?>
         /(?P<denominator>{_DECIMAL})(?!/?[0-9])
         |[eE](?P<exponent>[-+]?[0-9]{{1,3}})(?![0-9])
         |[ ]?[×x*·][ ]?10[ ]?(?:\^|\*\*)[ ]?[{{(]?(?P<ten>[-+]?[0-9]{{1,3}})(?![0-9])[}})]?
         |(?:\^|\*\*)[{{(]?(?P<power>[-+]?[0-9]{{1,3}})(?![0-9])[}})]?
       )?
    )
    (?:[ ]?(?P<percent>%|percent\b|per[ ]cent\b))?+
    (?:[ ](?P<scale>hundred|thousand|million|billion|trillion)\b)?+
    (?![ ]?[π√])(?!(?:\^|\*\*|e)[{{(]?[-+]?[0-9])   # no following factor or exponent that this parser does not support
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number with its unit: `5%` is 5 and a percent sign, `5 million` is 5 and a scale of a million."""

    value: Fraction
    is_percent: bool = False
    scale: int = 1


def normalize_digits(text: str) -> str:
    """Convert the digits and signs of other scripts to ASCII."""
    return text.translate(_TRANSLATION)


def last_numeral(text: str, decimal_comma: bool = False) -> Numeral | None:
    """Return the last number of the text; None without a number, or when the last number cannot be converted."""
    text = plain_latex(normalize_digits(text))
    text = _SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match.group()).replace("−", "-"), text)
    if decimal_comma:
        text = text.translate({ord(","): ".", ord("."): ","})
    last = None
    for last in _NUMBER.finditer(text):  # noqa: B007  # keeps the last match
        pass
    return _numeral(last) if last else None


def _numeral(match: re.Match[str]) -> Numeral | None:
    if len(match.group()) > MOST_DIGITS:
        return None
    try:
        value = _value(match)
    except (ZeroDivisionError, OverflowError):
        return None
    if match["sign"] == "-":
        value = -value
    return Numeral(value, match["percent"] is not None, _SCALES.get((match["scale"] or "").lower(), 1))


def _value(match: re.Match[str]) -> Fraction:
    if match["mixed"]:
        part = Fraction(int(match["top"]), int(match["bottom"]))
        return int(match["mixed"]) + part if part < 1 else part  # "5 7/2" is no mixed number
    value = _exact(match["number"])
    if match["denominator"]:
        return value / _exact(match["denominator"])
    if match["power"]:
        if len(match["number"]) * abs(int(match["power"])) > 10 * MOST_DIGITS:
            raise OverflowError
        return value ** int(match["power"])
    return value * Fraction(10) ** int(match["exponent"] or match["ten"] or 0)


def _exact(digits: str) -> Fraction:
    return Fraction(re.sub("[^0-9.]", "", digits))
