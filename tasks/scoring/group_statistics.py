"""Group statistics as in GRPO, over the valid items of a group: mean, standard deviation, advantage of each reward."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

#: Keeps the advantage finite when the rewards of a group are equal.
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    mean: float
    std: float
    """Unbiased (n - 1); 0 for a group with a single item."""

    def advantage_of(self, reward: float) -> float:
        """Return (reward - mean) / (std + EPSILON): 0 for a group with a single item, and for equal rewards."""
        return (reward - self.mean) / (self.std + EPSILON)


def statistics_of(rewards: Sequence[float]) -> GroupStatistics | None:
    """Compute the statistics of the rewards of the valid items; None for an empty group.

    Sums are exact, so that the result does not depend on the order of items, and equal rewards have advantage 0.
    """
    if not rewards:
        return None
    return GroupStatistics(float(mean(rewards)), stdev(rewards) if len(rewards) > 1 else 0.0)
