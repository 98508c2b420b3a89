"""What GRPO computes of a group: mean, standard deviation, and each reward's advantage. Over its valid items only."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

#: Keeps the advantage finite where all rewards are alike.
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    mean: float
    std: float
    """Unbiased (n - 1); 0 for a group of one."""

    def advantage_of(self, reward: float) -> float:
        """0 for a group of one, and where all rewards are alike."""
        return (reward - self.mean) / (self.std + EPSILON)


def statistics_of(rewards: Sequence[float]) -> GroupStatistics | None:
    """Of the rewards of the valid items; None when there are none.

    Sums are exact, so that the order of a group does not matter, and equal rewards have no advantage at all.
    """
    if not rewards:
        return None
    return GroupStatistics(float(mean(rewards)), stdev(rewards) if len(rewards) > 1 else 0.0)
