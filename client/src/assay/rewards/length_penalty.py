"""The group-median length penalty, as a formula.

The server has the same one for jobs that ask it to compose rewards; it is here too because a trainer goes on when the
server is away. Lengths are in tokens. Which responses make a group, and which of them count, is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from statistics import median


def length_penalty(
    length: float, median_length: float, max_penalty: float = 1.0, peak_ratio: float = 0.3, outer_ratio: float = 0.5
) -> float:
    """0 within `peak_ratio` of the median, `max_penalty` from `outer_ratio` on, a straight line between.

    A median of 0, as that of a group where nothing counts, penalises nobody.
    """
    if median_length <= 0:
        return 0.0
    away = abs(length - median_length) / median_length
    if away <= peak_ratio:
        return 0.0
    return max_penalty * min(1.0, (away - peak_ratio) / (outer_ratio - peak_ratio))


def group_medians(groups: Sequence[Hashable], lengths: Sequence[float], counted: Iterable[bool]) -> list[float]:
    """For each item the median length of its group's items that count; 0 where none does. Groups may lie anywhere."""
    known: dict[Hashable, list[float]] = {}
    for group, length, counts in zip(groups, lengths, counted):
        if counts:
            known.setdefault(group, []).append(length)
    medians = {group: float(median(values)) for group, values in known.items()}
    return [medians.get(group, 0.0) for group in groups]
