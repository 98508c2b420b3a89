"""Aggregation of verdicts to a score: over token probabilities, samples, orders and the judges of a panel."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.judging.numeric_verdicts import NumberReader
from tasks.judging.verdict import Verdict
from tasks.judging.word_verdicts import WordReader
from tasks.providers.call import ApiReply

#: Alternatives requested at each token; the maximum that OpenAI returns.
TOP_LOGPROBS = 20


def probability_weighted(reader: NumberReader | WordReader, reply: ApiReply, verdict: Verdict) -> float | None:
    """Return the mean of the possible verdicts at the verdict's token, weighted by their probabilities.

    For a scale this is G-Eval's score; for a pair alpaca_eval's preference, p(A) / (p(A) + p(B)), where a tie counts
    half for each response. None when the endpoint returned no probabilities, or when the verdict spans several tokens.
    """
    token = _token_at(reply, verdict)
    if token is None:
        return None
    likely = {str(each["token"]): float(each["logprob"]) for each in (*(token.get("top_logprobs") or ()), token)}
    mass: dict[str, float] = {}
    for word, logprob in likely.items():
        mass[_bare(word)] = mass.get(_bare(word), 0.0) + math.exp(logprob)
    # With tokenizers that split numbers into digits, the token "1" may be the beginning of "10".
    if reader.value("10") is not None and _bare(str(token["token"])) != "1" and "10" not in mass:
        mass.pop("1", None)
    known = [(p, value) for word, p in mass.items() if (value := _value(reader, word)) is not None]
    total = math.fsum(p for p, _ in known)
    return math.fsum(p * value for p, value in known) / total if total > 0 else None


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of the verdicts; 0 for a single verdict."""
    return statistics.pstdev(values)


def panel_mean(scores: Sequence[tuple[float, float]]) -> float:
    """Return the weighted mean of (weight, score) pairs."""
    return math.fsum(weight * score for weight, score in scores) / math.fsum(weight for weight, _ in scores)


def agree(first: float, second: float) -> bool:
    """Return whether two preferences name the same winner, or are both a tie."""
    return (first > 0.5) == (second > 0.5) and (first < 0.5) == (second < 0.5)


def normalized(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)


def _token_at(reply: ApiReply, verdict: Verdict) -> Mapping[str, Any] | None:
    """Return the token that holds the complete verdict; None when the verdict spans several tokens."""
    written = reply.text[verdict.start : verdict.end]
    start = 0
    for token in reply.logprobs:
        end = start + len(str(token["token"]))
        if start <= verdict.start < end:
            is_whole = _bare(str(token["token"])) == _bare(written)
            return token if is_whole and reply.text[start:end] == token["token"] else None
        start = end
    return None


def _bare(token: str) -> str:
    return token.strip(" \t\n\"'*_`[](){}:.,")


def _value(reader: NumberReader | WordReader, word: str) -> float | None:
    """Return the value of a token; None for a single lower-case letter, which starts a word and names no response."""
    return None if len(word) == 1 and word.isalpha() and word.islower() else reader.value(word)
