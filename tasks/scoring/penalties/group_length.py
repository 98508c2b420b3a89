"""Penalty `group_length`: penalize a response much shorter or longer than its group's median length."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Self

from pydantic import Field, model_validator

from tasks.scoring.penalty import PenaltyOptions, PenaltySize, by_group


class GroupLength(PenaltyOptions):
    """Distance of a response's length L from M, the median length of the valid responses to the same prompt.

    With p for `peak_ratio` and o for `outer_ratio`: 0 for (1-p)M <= L <= (1+p)M; from there it rises linearly to
    `max_penalty` at (1-o)M and at (1+o)M, and stays constant beyond. 0 when M = 0. A failed response does not count
    in the median, but still gets its own penalty.
    """

    max_penalty: PenaltySize = Field(1.0, description="The penalty at the outer border and beyond.")
    peak_ratio: float = Field(
        0.3, ge=0, description="Distance from the median, as a share of it, up to which the penalty is 0."
    )
    outer_ratio: float = Field(
        0.5,
        gt=0,
        description="Distance from the median, as a share of it, from which the penalty is `max_penalty`; must be "
        "above `peak_ratio`.",
    )

    @model_validator(mode="after")
    def _rises_outwards(self) -> Self:
        if self.peak_ratio >= self.outer_ratio:
            raise ValueError("`peak_ratio` must be less than `outer_ratio`")
        return self


@by_group("group_length", GroupLength)
def group_length(lengths: Sequence[int], options: GroupLength) -> Callable[[int], float]:
    middle = median_of(lengths)
    return lambda length: penalty_of(length, middle, options)


def median_of(lengths: Sequence[int]) -> float:
    """Return the median; for an even number of lengths the mean of the middle two, and 0 without lengths."""
    return float(median(lengths)) if lengths else 0.0


def penalty_of(length: int, middle: float, options: GroupLength) -> float:
    if not middle:
        return 0.0
    # A quotient is rounded like a parsed decimal number, so that a length exactly on a border compares equal to it.
    away = abs(length - middle) / middle
    risen = (away - options.peak_ratio) / (options.outer_ratio - options.peak_ratio)
    return options.max_penalty * min(max(risen, 0.0), 1.0)
