"""Records of episodes, and their summary: success rate with its confidence interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.episodes.model import Episode, EpisodeSpec

#: Standard deviations of a 95 % interval.
_Z = 1.959963984540054


def as_record(episode: Episode, spec: EpisodeSpec, trial: int = 0, video: str | None = None) -> dict[str, Any]:
    """Return the stored record of an episode that ran. `video`: name of its video file."""
    times = episode.inference_ms
    return {
        "trial": trial,
        "success": episode.success,
        "steps": episode.steps,
        "seconds": round(episode.seconds, 4),
        "instruction": episode.instruction,
        "task_id": spec.task_id,
        "seed": spec.seed,
        "init_state": spec.init_state,
        "inferences": len(times),
        "mean_inference_ms": round(sum(times) / len(times), 3) if times else 0.0,
        "max_inference_ms": round(max(times, default=0.0), 3),
        "simulated_s": round(episode.simulated_s, 4),
        "server": episode.server,
        "policy": episode.policy,
        "version": episode.version,
        "video": video,
    }


@dataclass(frozen=True, slots=True)
class Summary:
    success_rate: float
    episodes: int
    low: float
    high: float
    """Wilson's 95 % confidence interval: valid also for few episodes, and for rates of 0 and 1."""
    mean_steps: float
    mean_inference_ms: float
    max_inference_ms: float


def summarise(records: Sequence[Mapping[str, Any]]) -> Summary:
    """Summarize episodes that ran. Raises ValueError for an empty list: a failure is never turned into a number."""
    count = len(records)
    if not count:
        raise ValueError("no episode ran")
    rate = sum(bool(each["success"]) for each in records) / count
    centre = (rate + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * math.sqrt(rate * (1 - rate) / count + _Z**2 / (4 * count**2))
    inferences = sum(each["inferences"] for each in records)
    inferred_ms = sum(each["inferences"] * each["mean_inference_ms"] for each in records)
    return Summary(
        success_rate=rate,
        episodes=count,
        low=max(0.0, centre - half),
        high=min(1.0, centre + half),
        mean_steps=sum(each["steps"] for each in records) / count,
        mean_inference_ms=inferred_ms / inferences if inferences else 0.0,
        max_inference_ms=max(each["max_inference_ms"] for each in records),
    )
