"""What an environment is. Its file knows one simulator; how it is run, and where, is others' business."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.episodes.model import EpisodeSpec

Observation = dict[str, Any]
"""What a policy is sent, under its keys, but for the prompt."""
Action = NDArray[np.float64]
Frame = NDArray[np.uint8]
"""Height x width x 3."""


@dataclass(frozen=True, slots=True)
class Step:
    done: bool
    success: bool


class Environment(Protocol):
    """One episode at a time, of one thread. All chance comes from the episode's seed, never from a global generator."""

    instruction: str
    """The task's own, once it is reset."""
    max_steps: int
    """Of this episode, once it is reset."""
    replan_steps: int
    """Steps that are usually done of one plan."""
    action_size: int

    def reset(self, spec: EpisodeSpec) -> None:
        """Begin an episode. Raises EnvironmentMissing or EnvironmentFailed."""

    def observe(self) -> Observation:
        """What the policy would be sent now. Apart from `step`, because most steps' pictures are never sent."""

    def step(self, action: Action) -> Step: ...

    def frame(self) -> Frame:
        """The scene as people would like to see it."""

    def close(self) -> None: ...
