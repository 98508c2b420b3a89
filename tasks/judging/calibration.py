"""Calibration of a judge: agreement of its scores with human labels, and its position and length bias.

A figure is None where it is undefined: a correlation of constants, a kappa over a single category, a share of zero
items.
"""

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.judging.aggregation import normalized
from tasks.judging.model import JudgeItem, JudgeSpec, label_score
from tasks.scoring.messages import assistant_text

#: A preference closer to 0.5 than this counts as a tie.
TIE_TOLERANCE = 1e-9
#: Scales with more whole numbers, and sets of more distinct labels, count as continuous: no agreement or kappa.
MOST_CATEGORIES = 100


@dataclass(frozen=True, slots=True)
class Judged:
    """Scores of an item by judge and person on the same scale, with the length of the response."""

    score: float | None
    label: float | None
    length: int = 0
    """In characters; for a pair the length of the response minus the length of the rival."""
    first_preferences: tuple[float, ...] = ()
    """For a pair: the preference of each verdict for the response shown first."""
    orders_agree: bool | None = None
    is_pending: bool = False
    """Whether the item has no outcome yet."""
    is_off_scale: bool = False
    """Whether the person's label does not fit the scale."""


def collect(spec: JudgeSpec, outcomes: Iterable[tuple[JudgeItem, Mapping[str, Any] | None]]) -> list[Judged]:
    """Reduce items and their outcomes, as a client reads them, to small records; the outcome is None while pending."""
    return [_judged(spec, item, outcome) for item, outcome in outcomes]


def categories(spec: JudgeSpec) -> list[float] | None:
    """Return the possible labels in ascending order; None for a continuous scale."""
    low, high = spec.range
    if spec.mode == "pairwise":
        return [0.0, 0.5, 1.0]
    if not (float(low).is_integer() and float(high).is_integer() and high - low <= MOST_CATEGORIES):
        return None
    steps = [float(step) for step in range(int(low), int(high) + 1)]
    return [normalized(step, low, high) for step in steps] if spec.normalize else steps


def report(items: Sequence[Judged], steps: Sequence[float] | None = None) -> dict[str, Any]:
    """Compute agreement over the items with both score and label, and bias over the items with a score.

    For agreement and kappa, scores and labels are rounded to the nearest of `steps`, or else of the distinct labels.
    """
    pending = sum(each.is_pending for each in items)
    items = [each for each in items if not each.is_pending]
    both = [(each.score, each.label) for each in items if each.score is not None and each.label is not None]
    scores, labels = [score for score, _ in both], [label for _, label in both]
    steps = steps or sorted(set(labels))
    if len(steps) > MOST_CATEGORIES + 1:
        steps = []
    ratings = [(_nearest(score, steps), _nearest(label, steps)) for score, label in both] if steps else []
    return {
        "n": len(both),
        "pending": pending,
        "without_score": sum(each.score is None for each in items),
        "without_label": sum(each.label is None and not each.is_off_scale for each in items),
        "off_scale": sum(each.is_off_scale for each in items),
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
    """Return Cohen's kappa; `weighted`: disagreements weighted by the square of their distance."""
    mine, theirs = Counter(first for first, _ in ratings), Counter(second for _, second in ratings)

    def distance(first: float, second: float) -> float:
        return (first - second) ** 2 if weighted else float(first != second)

    seen = sum(distance(first, second) for first, second in ratings) * len(ratings)
    expected = sum(a * b * distance(first, second) for first, a in mine.items() for second, b in theirs.items())
    return 1 - seen / expected if expected else None


def pearson(first: Sequence[float], second: Sequence[float]) -> float | None:
    if len(set(first)) < 2 or len(set(second)) < 2:  # a constant: its rounded mean would result in a false variance
        return None
    return statistics.correlation(first, second)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    return pearson(_ranks(first), _ranks(second))


def position_bias(items: Sequence[Judged]) -> dict[str, Any]:
    """Return for pairs how often the response shown first wins (0.5: no bias) and how often the orders disagree."""
    decided = [first for each in items for first in each.first_preferences if abs(first - 0.5) > TIE_TOLERANCE]
    orders = [each.orders_agree for each in items if each.orders_agree is not None]
    return {
        "first_wins": _share([first > 0.5 for first in decided]),
        "verdicts": len(decided),
        "orders_disagree": _share([not agree for agree in orders]),
    }


def length_bias(items: Sequence[Judged]) -> dict[str, Any]:
    """Return rank correlations of length with score, and with score minus label: the second is the judge's own bias."""
    scored = [(each.length, each.score) for each in items if each.score is not None]
    beyond = [
        (each.length, each.score - each.label) for each in items if each.score is not None and each.label is not None
    ]
    return {
        "with_score": spearman([float(length) for length, _ in scored], [score for _, score in scored]),
        "with_error": spearman([float(length) for length, _ in beyond], [error for _, error in beyond]),
    }


def _judged(spec: JudgeSpec, item: JudgeItem, outcome: Mapping[str, Any] | None) -> Judged:
    label = label_score(spec, item.label)
    is_off_scale = label is None and item.label is not None
    if label is not None and spec.normalize:
        label = normalized(label, *spec.range)
    length = len(assistant_text(item.response)) - (
        len(assistant_text(item.rival or "")) if spec.mode == "pairwise" else 0
    )
    if outcome is None or outcome.get("status") != "ok":
        return Judged(None, label, length, is_pending=outcome is None, is_off_scale=is_off_scale)
    if spec.mode != "pairwise":
        return Judged(outcome["score"], label, length, is_off_scale=is_off_scale)
    rows = (outcome.get("value") or {}).get("verdicts", ())
    first_preferences = tuple(row["verdict"] for row in rows if row["verdict"] is not None)
    agreement = (outcome.get("parts") or {}).get("order_agreement")
    orders_agree = None if agreement is None else agreement == 1.0
    return Judged(outcome["score"], label, length, first_preferences, orders_agree, is_off_scale=is_off_scale)


def _nearest(value: float, steps: Sequence[float]) -> float:
    """Return the nearest of the ascending steps; the lower step when two are equally near."""
    at = bisect_left(steps, value)
    return min(steps[max(0, at - 1) : at + 1], key=lambda each: (abs(each - value), each))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, counted from 1; equal values share the mean of their ranks."""
    ranks: dict[float, float] = {}
    before = 0
    for value, count in sorted(Counter(values).items()):
        ranks[value] = before + (count + 1) / 2
        before += count
    return [ranks[value] for value in values]


def _share(held: Sequence[bool]) -> float | None:
    return sum(held) / len(held) if held else None
