"""Headless environments from Gymnasium's registry, which includes MuJoCo's."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.episodes.model import EpisodeSpec, Gymnasium
from tasks.errors import EnvironmentFailed, EnvironmentMissing
from workers.environments.adapters import ADAPTERS, Progress, adapter_of
from workers.environments.environment import Action, Frame, Observation, Step

_IMAGE = 224


class GymnasiumEnvironment:
    def __init__(self, options: Gymnasium) -> None:
        self._options = options
        self._gymnasium = _import()
        adapter = adapter_of(options.success) if options.success else ADAPTERS.get(options.id)
        if adapter is None:
            known = ", ".join(ADAPTERS)
            raise EnvironmentFailed(
                f"{options.id} has no success rule: give a rule as `success`; built-in rules exist for {known}."
            )
        self._adapter = adapter
        self.instruction, self.replan_steps = adapter.instruction, adapter.replan_steps
        self.max_steps = 0
        self._has_pictures = options.images
        self._env = self._make()
        self._spaces = self._gymnasium.spaces
        self.action_size = self._count_actions()
        self._limit: int | None = getattr(self._env.spec, "max_episode_steps", None)
        self._observation: Any = None
        self._steps, self._total_reward = 0, 0.0

    def reset(self, spec: EpisodeSpec) -> None:
        if spec.task_id:
            raise EnvironmentFailed(f"{self._options.id} has one task only, task 0.")
        if not (limit := min(spec.max_steps or math.inf, self._limit or math.inf)) < math.inf:
            raise EnvironmentFailed(f"{self._options.id} has no step limit: set `max_steps`.")
        if spec.video and not self._has_pictures:
            self._env.close()
            self._has_pictures = True
            self._env = self._make()
        self.max_steps, self._steps, self._total_reward = int(limit), 0, 0.0
        # Gymnasium offers a single initial state per seed: derive a seed for the n-th initial state.
        seed = (
            np.random.SeedSequence((spec.seed, spec.init_state)).generate_state(1)[0] if spec.init_state else spec.seed
        )
        self._observation, _ = self._env.reset(seed=int(seed))

    def observe(self) -> Observation:
        seen = self._observation
        if isinstance(seen, dict):
            observation = {f"observation/{key}": np.asarray(value) for key, value in seen.items()}
        elif self._adapter.keys:
            observation = {key: np.asarray(seen)[list(entries)] for key, entries in self._adapter.keys.items()}
        else:
            observation = {"observation/state": np.asarray(seen)}
        if self._options.images:
            observation["observation/image"] = self.frame()
        return observation

    def step(self, action: Action) -> Step:
        self._steps += 1
        self._observation, reward, terminated, truncated, info = self._env.step(self._translate(action))
        self._total_reward += float(reward)
        is_last = self._steps >= self.max_steps or bool(truncated)
        progress = Progress(self._observation, info, self._total_reward, is_last, bool(terminated))
        success = self._adapter.is_success(progress)
        return Step(success or bool(terminated) or is_last, success)

    def frame(self) -> Frame:
        picture: NDArray[np.uint8] = np.asarray(self._env.render(), np.uint8)
        return picture

    def close(self) -> None:
        self._env.close()

    def _make(self) -> Any:
        more: dict[str, Any] = {"render_mode": "rgb_array"} if self._has_pictures else {}
        if self._has_pictures and self._is_mujoco():
            more |= {"width": _IMAGE, "height": _IMAGE}
        try:
            return self._gymnasium.make(self._options.id, disable_env_checker=True, **more)
        except (self._gymnasium.error.Error, ImportError) as error:
            raise EnvironmentMissing(f"The environment {self._options.id} cannot be created here: {error}") from error

    def _is_mujoco(self) -> bool:
        known = self._gymnasium.registry.get(self._options.id)
        return known is not None and ".mujoco" in str(known.entry_point)

    def _count_actions(self) -> int:
        space = self._env.action_space
        if isinstance(space, self._spaces.Discrete):
            return int(space.n)
        if isinstance(space, self._spaces.Box):
            return math.prod(space.shape)
        raise EnvironmentFailed(f"{self._options.id} is not supported: policies cannot act in its space {space}.")

    def _translate(self, action: Action) -> Any:
        space = self._env.action_space
        if isinstance(space, self._spaces.Discrete):
            return int(np.argmax(action)) + int(space.start)
        return np.clip(action.reshape(space.shape), space.low, space.high).astype(space.dtype)


def _import() -> Any:
    try:
        import gymnasium  # an extra: requirements/simulation.txt
    except ImportError as error:
        raise EnvironmentMissing(
            "Gymnasium is not installed on this worker: pip install -r requirements/simulation.txt"
        ) from error
    return gymnasium
