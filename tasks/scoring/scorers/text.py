"""Scorers that compare texts: `exact_match`, `contains`, `similarity_ratio`."""

import re
import string
import unicodedata
from typing import Literal

import regex
from pydantic import Field

from tasks.errors import CannotJudge
from tasks.scoring.scorer import Options, Sample, scorer

#: Maximum product of the lengths of two compared texts: takes about half a second.
MOST_WORK = 4 * 10**9
#: Timeout of a search for whole words, in seconds.
SEARCH_S = 2.0
_PUNCTUATION = {ord(mark): None for mark in string.punctuation + "。，、；：？！“”‘’（）《》【】…—"}
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class ExactMatch(Options):
    """1 when the response equals a reference. White space is trimmed, and repeated white space counts as a space."""

    ignore_case: bool = Field(False, description="Whether `Paris` equals `paris`.")
    ignore_punctuation: bool = Field(False, description="Whether `Paris.` equals `Paris`.")
    ignore_articles: bool = Field(False, description="Whether `the cat` equals `cat` (English).")


@scorer("exact_match", ExactMatch)
def exact_match(sample: Sample, options: ExactMatch) -> float:
    said = _normal(sample.text, options)
    return float(any(said == _normal(reference, options) for reference in sample.needed_references))


def _normal(text: str, options: ExactMatch) -> str:
    text = unicodedata.normalize("NFC", text)
    if options.ignore_case:
        text = text.casefold()
    if options.ignore_punctuation:
        text = text.translate(_PUNCTUATION)
    if options.ignore_articles:
        text = _ARTICLES.sub(" ", text)
    return " ".join(text.split())


class Contains(Options):
    """1 when the response contains the terms: the option `terms`, or else the item's references."""

    terms: tuple[str, ...] = Field((), max_length=1000, description="Terms to search; empty: the references.")
    need: Literal["any", "all", "none", "share"] = Field(
        "any", description="Number of terms that must occur; `share`: the score is the share of terms found."
    )
    ignore_case: bool = Field(True, description="Whether `Paris` is found in `PARIS`.")
    whole_words: bool = Field(False, description="Whether `art` must not be found in `party`.")


@scorer("contains", Contains)
def contains(sample: Sample, options: Contains) -> float:
    text = _folded(sample.text, options)
    terms = [_folded(term, options) for term in options.terms or sample.needed_references]
    if not all(terms):
        raise CannotJudge("reference_unusable", "A term is empty, and every text contains the empty text: remove it.")
    found = [_is_in(term, text, options) for term in terms]
    if options.need == "share":
        return sum(found) / len(found)
    return float({"any": any(found), "all": all(found), "none": not any(found)}[options.need])


def _folded(text: str, options: Contains) -> str:
    text = unicodedata.normalize("NFC", text).strip()
    return text.casefold() if options.ignore_case else text


def _is_in(term: str, text: str, options: Contains) -> bool:
    if not options.whole_words:
        return term in text
    try:
        return regex.search(rf"(?<!\w){regex.escape(term)}(?!\w)", text, timeout=SEARCH_S) is not None
    except TimeoutError:
        raise CannotJudge("regex_timeout", f"The search for {term[:80]!r} timed out after {SEARCH_S} s.") from None


class SimilarityRatio(Options):
    """Similarity of the response to the most similar reference: 0 to 1, rapidfuzz's normalized edit distance."""

    ignore_case: bool = Field(False, description="Whether `Paris` equals `paris`.")
    ignore_order: bool = Field(False, description="Whether the words are sorted before the comparison.")
    least: float = Field(0.0, ge=0, le=1, description="A smaller similarity counts as 0.")


@scorer("similarity_ratio", SimilarityRatio)
def similarity_ratio(sample: Sample, options: SimilarityRatio) -> float:
    from rapidfuzz import fuzz  # not installed with the web process, which only validates options

    said, references = sample.text, sample.needed_references
    if len(said) * max(map(len, references)) > MOST_WORK:
        raise CannotJudge("too_long", "The texts are too long to compare: the product of their lengths exceeds 4e9.")
    if options.ignore_case:
        said, references = said.casefold(), tuple(reference.casefold() for reference in references)
    compare = fuzz.token_sort_ratio if options.ignore_order else fuzz.ratio
    ratio = max(compare(said.strip(), reference.strip()) for reference in references) / 100
    return ratio if ratio >= options.least else 0.0
