"""Penalty `repetition`: penalize repeated n-grams of a response."""

from itertools import islice

import regex
from pydantic import Field

from tasks.scoring.penalty import PenaltyOptions, PenaltySize, by_text

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class Repetition(PenaltyOptions):
    """The share of repeated n-grams, 1 - distinct / total, times `max_penalty`.

    Words are separated by white space, and case is ignored. In scripts without spaces (Chinese, Japanese, Thai ...)
    every character is a word. The penalty of a text with fewer words than an n-gram is 0.
    """

    ngram: int = Field(3, ge=1, le=50, description="Number of words per n-gram.")
    max_penalty: PenaltySize = Field(1.0, description="Upper limit of the penalty, approached by pure repetition.")


@by_text("repetition", Repetition)
def repetition(text: str, options: Repetition) -> float:
    words = _WORD.findall(text.lower())
    total = len(words) - options.ngram + 1
    if total < 1:
        return 0.0
    ngrams = zip(*(islice(words, start, None) for start in range(options.ngram)), strict=False)
    distinct = len(set(map(hash, ngrams)))  # hashes: the n-grams of a megabyte of text would fill hundreds of megabytes
    return options.max_penalty * (1 - distinct / total)
