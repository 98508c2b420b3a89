"""How far a judge can be trusted: its scores beside people's labels, and what sways it.

Every figure is None where it is not defined: a correlation of constants, a kappa of one category, a share of nothing.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.judging.model import JudgeItem, JudgeSpec, label_score
from tasks.judging.weighing import normalized
from tasks.scoring.messages import every_turn

#: A preference this close to a half is a tie.
NEAR = 1e-9
#: A scale of more whole numbers has no steps to agree on.
MOST_CATEGORIES = 100


@dataclass(frozen=True, slots=True)
class Judged:
    """One item: what the judge and what a person said, on one scale, and how long the response is."""

    score: float | None
    label: float | None
    length: int = 0
    """In characters; for a pair the response's minus the rival's."""
    firsts: tuple[float, ...] = ()
    """Of a pair: for each verdict how much the one shown first was preferred."""
    orders_agree: bool | None = None


def collect(spec: JudgeSpec, outcomes: Iterable[tuple[JudgeItem, Mapping[str, Any]]]) -> list[Judged]:
    """Items with their outcomes, as a client reads them."""
    return [_judged(spec, item, outcome) for item, outcome in outcomes]


def categories(spec: JudgeSpec) -> list[float] | None:
    """What a person may have said; None on a scale without steps."""
    low, high = spec.range
    if spec.mode == "pairwise":
        return [0.0, 0.5, 1.0]
    if not (float(low).is_integer() and float(high).is_integer() and high - low <= MOST_CATEGORIES):
        return None
    steps = [float(step) for step in range(int(low), int(high) + 1)]
    return [normalized(step, low, high) for step in steps] if spec.normalize else steps


def report(items: Sequence[Judged], steps: Sequence[float] | None = None) -> dict[str, Any]:
    """Agreement with the labels, over the items that have both; bias over all that have a score.

    For agreement and kappa, scores and labels are rounded to the nearest of `steps`, or of the labels there are.
    """
    both = [(each.score, each.label) for each in items if each.score is not None and each.label is not None]
    scores, labels = [score for score, _ in both], [label for _, label in both]
    steps = steps or sorted(set(labels))
    ratings = [(_nearest(score, steps), _nearest(label, steps)) for score, label in both]
    return {
        "n": len(both),
        "without_score": sum(each.score is None for each in items),
        "without_label": sum(each.label is None for each in items),
        "agreement": _share([mine == theirs for mine, theirs in ratings]),
        "kappa": kappa(ratings),
        "weighted_kappa": kappa(ratings, weighted=True),
        "pearson": pearson(scores, labels),
        "spearman": spearman(scores, labels),
        "mean_error": statistics.fmean(score - label for score, label in both) if both else None,
        "position": position_bias(items),
        "length": length_bias(items),
    }


def kappa(ratings: Sequence[tuple[float, float]], weighted: bool = False) -> float | None:
    """Cohen's kappa; `weighted`: by the square of how far they lie apart."""
    mine, theirs = Counter(first for first, _ in ratings), Counter(second for _, second in ratings)

    def distance(first: float, second: float) -> float:
        return (first - second) ** 2 if weighted else float(first != second)

    seen = sum(distance(first, second) for first, second in ratings) * len(ratings)
    expected = sum(a * b * distance(first, second) for first, a in mine.items() for second, b in theirs.items())
    return 1 - seen / expected if expected else None


def pearson(first: Sequence[float], second: Sequence[float]) -> float | None:
    try:
        return statistics.correlation(first, second)
    except statistics.StatisticsError:
        return None


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    return pearson(_ranks(first), _ranks(second))


def position_bias(items: Sequence[Judged]) -> dict[str, Any]:
    """Of pairs: how often the one shown first wins (0.5 without bias), and how often the orders disagree."""
    decided = [first for each in items for first in each.firsts if abs(first - 0.5) > NEAR]
    orders = [each.orders_agree for each in items if each.orders_agree is not None]
    return {
        "first_wins": _share([first > 0.5 for first in decided]),
        "verdicts": len(decided),
        "orders_disagree": _share([not agree for agree in orders]),
    }


def length_bias(items: Sequence[Judged]) -> dict[str, Any]:
    """Whether longer responses score higher, and higher than people say: the second is the judge's own leaning."""
    scored = [(each.length, each.score) for each in items if each.score is not None]
    beyond = [
        (each.length, each.score - each.label) for each in items if each.score is not None and each.label is not None
    ]
    return {
        "with_score": spearman([float(length) for length, _ in scored], [score for _, score in scored]),
        "with_error": spearman([float(length) for length, _ in beyond], [error for _, error in beyond]),
    }


def _judged(spec: JudgeSpec, item: JudgeItem, outcome: Mapping[str, Any]) -> Judged:
    label = label_score(spec, item.label)
    if label is not None and spec.normalize:
        label = normalized(label, *spec.range)
    length = len(every_turn(item.response)) - (len(every_turn(item.rival or "")) if spec.mode == "pairwise" else 0)
    if outcome.get("status") != "ok":
        return Judged(None, label, length)
    if spec.mode != "pairwise":
        return Judged(outcome["score"], label, length)
    rows = (outcome.get("value") or {}).get("verdicts", ())
    firsts = tuple(row["verdict"] for row in rows if row["verdict"] is not None)
    agreement = (outcome.get("parts") or {}).get("order_agreement")
    return Judged(outcome["score"], label, length, firsts, None if agreement is None else agreement == 1.0)


def _nearest(value: float, categories: Sequence[float]) -> float:
    return min(categories, key=lambda each: (abs(each - value), each))


def _ranks(values: Sequence[float]) -> list[float]:
    """From 1 on; equal values share the mean of their ranks."""
    ranks: dict[float, float] = {}
    before = 0
    for value, count in sorted(Counter(values).items()):
        ranks[value] = before + (count + 1) / 2
        before += count
    return [ranks[value] for value in values]


def _share(held: Sequence[bool]) -> float | None:
    return sum(held) / len(held) if held else None
