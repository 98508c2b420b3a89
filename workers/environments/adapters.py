"""Adapters between Gymnasium's environments and policies: the key of each part of an observation, and the success rule,
since the environments report rewards only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.episodes.model import Success


@dataclass(frozen=True, slots=True)
class Progress:
    """Input of a success rule."""

    observation: Any
    info: Mapping[str, Any]
    total_reward: float
    is_last: bool
    """Whether this is the last step that the episode may have."""
    terminated: bool
    """Whether the environment itself ended the episode."""


@dataclass(frozen=True, slots=True)
class Adapter:
    rule: str
    """The success rule in words."""
    is_success: Callable[[Progress], bool]
    instruction: str = ""
    keys: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Entries of a flat observation under each key; empty: the whole observation is `observation/state`."""
    replan_steps: int = 5


def _within(metres: float, first: slice, second: slice | None = None) -> Callable[[Progress], bool]:
    def rule(progress: Progress) -> bool:
        offset = progress.observation[first] - (0.0 if second is None else progress.observation[second])
        return bool(np.linalg.norm(offset) <= metres)

    return rule


def _survives(progress: Progress) -> bool:
    return progress.is_last and not progress.terminated


def _entries(*parts: tuple[int, int]) -> tuple[int, ...]:
    return tuple(index for first, end in parts for index in range(first, end))


ADAPTERS: Mapping[str, Adapter] = {
    "Reacher-v5": Adapter(
        "the fingertip comes within 1 cm of the target",
        _within(0.01, slice(8, 10)),
        "move the fingertip to the target",
        {
            "observation/state": _entries((0, 4), (6, 8)),  # cosines and sines of the joints, their velocities
            "observation/goal": _entries((4, 6)),
        },
    ),
    "Pusher-v5": Adapter(
        "the object comes within 5 cm of the goal, seen from above",
        _within(0.05, slice(17, 19), slice(20, 22)),
        "push the object to the goal",
        {
            "observation/state": _entries((0, 14)),  # angles and velocities of the joints
            "observation/fingertip": _entries((14, 17)),
            "observation/object": _entries((17, 20)),
            "observation/goal": _entries((20, 23)),
        },
    ),
    "InvertedPendulum-v5": Adapter("the pole stands until the last step", _survives, "balance the pole"),
    "CartPole-v1": Adapter("the pole stands until the last step", _survives, "balance the pole"),
}


def adapter_of(success: Success) -> Adapter:
    """Return an adapter with the rule that the request states, for an id that is missing in the table."""

    def rule(progress: Progress) -> bool:
        if success.info and not bool(np.all(progress.info.get(success.info, False))):
            return False
        if success.total_reward is not None and progress.total_reward < success.total_reward:
            return False
        return not success.survives or _survives(progress)

    said = [
        f"the step's info says {success.info!r}" if success.info else "",
        f"the rewards add up to {success.total_reward}" if success.total_reward is not None else "",
        "it lasts until the last step" if success.survives else "",
    ]
    return Adapter(", and ".join(filter(None, said)), rule)
