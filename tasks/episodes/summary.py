"""Several episodes as one score: the share that succeeded, of those that ran, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.episodes.model import Episode

#: Standard deviations of a 95 % interval.
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Summary:
    success_rate: float
    episodes: int
    low: float
    high: float
    """Wilson's 95 % interval: honest for few episodes, and for rates of 0 and 1."""
    mean_steps: float
    mean_inference_ms: float | None
    max_inference_ms: float | None


def summarise(episodes: Sequence[Episode]) -> Summary:
    """Raises ValueError when none ran: a failure is never a number."""
    count = len(episodes)
    if not count:
        raise ValueError("no episode ran")
    rate = sum(episode.success for episode in episodes) / count
    centre = (rate + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * math.sqrt(rate * (1 - rate) / count + _Z**2 / (4 * count**2))
    times = [ms for episode in episodes for ms in episode.inference_ms]
    return Summary(
        success_rate=rate,
        episodes=count,
        low=max(0.0, centre - half),
        high=min(1.0, centre + half),
        mean_steps=sum(episode.steps for episode in episodes) / count,
        mean_inference_ms=sum(times) / len(times) if times else None,
        max_inference_ms=max(times, default=None),
    )
