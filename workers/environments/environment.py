"""Interface of an environment. Its module adapts one simulator; `simulator.py` and its implementations run it."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.episodes.model import EpisodeSpec

Observation = dict[str, Any]
"""Input of a policy, under the policy's keys, without the prompt."""
Action = NDArray[np.float64]
Frame = NDArray[np.uint8]
"""Height x width x 3."""


@dataclass(frozen=True, slots=True)
class Step:
    done: bool
    success: bool


class Environment(Protocol):
    """Environment of one episode at a time, used by one thread. Its randomness comes from the episode's seed, never
    from a global generator."""

    instruction: str
    """The task's own instruction, after `reset`."""
    max_steps: int
    """Maximum steps of this episode, after `reset`."""
    replan_steps: int
    """Steps that are usually executed of one plan."""
    action_size: int

    def reset(self, spec: EpisodeSpec) -> None:
        """Begin an episode. Raises EnvironmentMissing or EnvironmentFailed."""

    def observe(self) -> Observation:
        """Return the input of the policy now. Separate from `step`, because most steps' images are never sent."""

    def step(self, action: Action) -> Step: ...

    def frame(self) -> Frame:
        """Return an image of the scene for people."""

    def close(self) -> None: ...
