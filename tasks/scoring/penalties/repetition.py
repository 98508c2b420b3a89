"""Penalty `repetition`: a response that says the same again."""

from itertools import islice

import regex
from pydantic import Field

from tasks.scoring.penalty import Height, PenaltyOptions, by_text

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class Repetition(PenaltyOptions):
    """The share of n-grams that were there before, 1 - distinct / all, times `max_penalty`.

    Words lie between white space, and case does not count. In scripts without spaces (Chinese, Japanese, Thai ...)
    every character is a word. A text with fewer words than an n-gram has none: 0.
    """

    ngram: int = Field(3, ge=1, le=50, description="How many words make an n-gram.")
    max_penalty: Height = Field(1.0, description="The penalty that a text of nothing but repetition comes near.")


@by_text("repetition", Repetition)
def repetition(text: str, options: Repetition) -> float:
    words = _WORD.findall(text.lower())
    total = len(words) - options.ngram + 1
    if total < 1:
        return 0.0
    ngrams = zip(*(islice(words, start, None) for start in range(options.ngram)), strict=False)
    distinct = len(set(map(hash, ngrams)))  # of a megabyte, the n-grams themselves would fill hundreds
    return options.max_penalty * (1 - distinct / total)
