"""From verdicts to a score: by the probabilities of their tokens, over samples, over orders, over a panel of judges."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.apis.call import ApiReply
from tasks.judging.marks import Marks
from tasks.judging.verdict import Verdict
from tasks.judging.words import Words

#: Alternatives asked for at each token; the most that OpenAI gives.
TOP_LOGPROBS = 20


def weighted(read: Marks | Words, reply: ApiReply, verdict: Verdict) -> float | None:
    """The mean of all verdicts that could have stood in its place, each by its probability.

    For a scale this is G-Eval's score; for a pair alpaca_eval's preference, p(A) / (p(A) + p(B)), a tie being half of
    each. None when the endpoint gave no probabilities, or when the verdict is more than one token.
    """
    token = _token_at(reply, verdict)
    if token is None:
        return None
    likely = {str(each["token"]): float(each["logprob"]) for each in (*(token.get("top_logprobs") or ()), token)}
    mass: dict[str, float] = {}
    for word, logprob in likely.items():
        mass[_bare(word)] = mass.get(_bare(word), 0.0) + math.exp(logprob)
    # Where digits are tokens of their own, "1" may be the beginning of "10".
    if read.value("10") is not None and _bare(str(token["token"])) != "1" and "10" not in mass:
        mass.pop("1", None)
    known = [(p, value) for word, p in mass.items() if (value := _value(read, word)) is not None]
    total = math.fsum(p for p, _ in known)
    return math.fsum(p * value for p, value in known) / total if total > 0 else None


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def spread(values: Sequence[float]) -> float:
    """Standard deviation of all verdicts; 0 for one."""
    return statistics.pstdev(values)


def panel_mean(scores: Sequence[tuple[float, float]]) -> float:
    """Of pairs of weight and score."""
    return math.fsum(weight * score for weight, score in scores) / math.fsum(weight for weight, _ in scores)


def agree(first: float, second: float) -> bool:
    """Whether two preferences name the same winner, or both a tie."""
    return (first > 0.5) == (second > 0.5) and (first < 0.5) == (second < 0.5)


def normalized(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)


def _token_at(reply: ApiReply, verdict: Verdict) -> Mapping[str, Any] | None:
    """The token that is the verdict, all of it."""
    written = reply.text[verdict.start : verdict.end]
    place = 0
    for token in reply.logprobs:
        end = place + len(str(token["token"]))
        if place <= verdict.start < end:
            is_whole = _bare(str(token["token"])) == _bare(written)
            return token if is_whole and reply.text[place:end] == token["token"] else None
        place = end
    return None


def _bare(token: str) -> str:
    return token.strip(" \t\n\"'*_`[](){}:.,")


def _value(read: Marks | Words, word: str) -> float | None:
    """A lone small letter is a word's beginning, not a response's name."""
    return None if len(word) == 1 and word.isalpha() and word.islower() else read.value(word)
