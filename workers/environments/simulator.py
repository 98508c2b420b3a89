"""Interface of a simulator: an environment that runs an episode's actions, in this process or in a child process."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.episodes.model import EpisodeSpec
from tasks.errors import AssayError, EnvironmentFailed
from workers.environments.environment import Environment, Observation
from workers.environments.video import Recorder


@dataclass(frozen=True, slots=True)
class Start:
    observation: Observation
    instruction: str
    max_steps: int
    replan_steps: int
    action_size: int


@dataclass(frozen=True, slots=True)
class Progress:
    observation: Observation
    """Observation after the last step; empty after the end, because no policy needs it."""
    steps: int
    """Steps of the whole episode, so far."""
    done: bool
    success: bool


class Simulator(Protocol):
    """Used by one thread at a time. Every call raises EnvironmentMissing, EnvironmentFailed or SimulatorLost."""

    @property
    def is_lost(self) -> bool:
        """Whether it can no longer be used."""

    def start(self, spec: EpisodeSpec) -> Start: ...

    def advance(self, actions: NDArray[Any]) -> Progress:
        """Execute the actions, one per row; stop at the end of the episode."""

    def video(self) -> bytes:
        """Return the video of the episode so far, if the spec requests a video."""

    def close(self) -> None: ...


class LocalSimulator:
    """Simulator in this process and thread."""

    is_lost = False

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._steps = 0
        self._recorder: Recorder | None = None

    def start(self, spec: EpisodeSpec) -> Start:
        self._steps, self._recorder = 0, Recorder() if spec.video else None
        environment = self._environment
        try:
            environment.reset(spec)
            self._record()
            return Start(
                environment.observe(),
                environment.instruction,
                environment.max_steps,
                spec.replan_steps or environment.replan_steps,
                environment.action_size,
            )
        except Exception as error:
            raise as_failure(error) from error

    def advance(self, actions: NDArray[Any]) -> Progress:
        environment = self._environment
        try:
            for action in np.asarray(actions, np.float64):
                step = environment.step(action)
                self._steps += 1
                self._record()
                if step.done or self._steps >= environment.max_steps:
                    return Progress({}, self._steps, True, step.success)
            return Progress(environment.observe(), self._steps, False, False)
        except Exception as error:
            raise as_failure(error) from error

    def video(self) -> bytes:
        return self._recorder.encode() if self._recorder else b""

    def close(self) -> None:
        self._environment.close()

    def _record(self) -> None:
        if self._recorder and self._recorder.wants_next():
            self._recorder.add(self._environment.frame())


def as_failure(error: Exception) -> AssayError:
    """Translate any error that a simulator may raise into an AssayError."""
    if isinstance(error, AssayError):
        return error
    return EnvironmentFailed(f"The environment failed with {type(error).__name__}: {str(error)[:300]}")
