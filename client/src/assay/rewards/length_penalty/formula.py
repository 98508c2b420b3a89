"""Formula of the group-median length penalty.

The server has the same formula for jobs that compose rewards. The client has its own copy because a trainer keeps
running when the server is unavailable. Lengths are in tokens. The caller decides which responses form a group, and
which of them count for the median.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from statistics import median


def length_penalty(
    length: float, median_length: float, max_penalty: float = 1.0, peak_ratio: float = 0.3, outer_ratio: float = 0.5
) -> float:
    """Return the penalty: 0 within `peak_ratio` of the median, `max_penalty` beyond `outer_ratio`, linear between.

    The penalty is 0 if the median is 0, for example in a group without a counted response.
    """
    if median_length <= 0:
        return 0.0
    deviation = abs(length - median_length) / median_length
    if deviation <= peak_ratio:
        return 0.0
    return max_penalty * min(1.0, (deviation - peak_ratio) / (outer_ratio - peak_ratio))


def group_medians(groups: Sequence[Hashable], lengths: Sequence[float], counted: Iterable[bool]) -> list[float]:
    """Return for each item the median length of the counted items of its group, or 0 without a counted item. Items of a
    group need not be adjacent."""
    lengths_by_group: dict[Hashable, list[float]] = {}
    for group, length, counts in zip(groups, lengths, counted):
        if counts:
            lengths_by_group.setdefault(group, []).append(length)
    medians = {group: float(median(values)) for group, values in lengths_by_group.items()}
    return [medians.get(group, 0.0) for group in groups]
