"""LIBERO, as openpi evaluates policies on it: images rotated and scaled, objects at rest before the policy acts.

An optional extra. LIBERO draws from NumPy's global generator, so it runs in its own process, one episode at a time, and
its seed is set for each episode. Tested against a recording fake; not run here with LIBERO's own meshes.
"""

import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.episodes.model import EpisodeSpec, Libero
from tasks.errors import EnvironmentFailed, EnvironmentMissing
from workers.environments.environment import Action, Frame, Observation, Step
from workers.environments.images import fit, upright

#: Maximum steps of an episode: somewhat more than the suite's longest demonstration has.
MAX_STEPS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
#: The action that stands still, with an open gripper.
WAITING = [0.0] * 6 + [-1.0]
#: Resolution of the cameras in the training data.
RESOLUTION = 256


class Backend(Protocol):
    """Interface to the functions of LIBERO's package that are used."""

    def instruction(self, suite: str, task_id: int) -> str: ...

    def initial_states(self, suite: str, task_id: int) -> Any: ...

    def make(self, suite: str, task_id: int, resolution: int) -> Any: ...


class LiberoEnvironment:
    replan_steps = 5
    action_size = 7

    def __init__(self, options: Libero, backend: Backend | None = None) -> None:
        self._options = options
        self._backend = backend or InstalledLibero()
        self.instruction, self.max_steps = "", MAX_STEPS[options.suite]
        self._env: Any = None
        self._task: int | None = None
        self._states: Any = None
        self._seen: Any = None

    def reset(self, spec: EpisodeSpec) -> None:
        self._load(spec.task_id)
        if spec.init_state >= len(self._states):
            raise EnvironmentFailed(
                f"Initial state {spec.init_state} does not exist: task {spec.task_id} of {self._options.suite} "
                f"has {len(self._states)}."
            )
        self.max_steps = spec.max_steps or MAX_STEPS[self._options.suite]
        self._env.seed(spec.seed)  # objects' positions depend on it, even with a given initial state
        self._env.reset()
        self._seen = self._env.set_init_state(self._states[spec.init_state])
        for _ in range(self._options.num_steps_wait):  # the simulator drops the objects: wait until they rest
            self._seen, *_ = self._env.step(WAITING)

    def observe(self) -> Observation:
        seen, size = self._seen, self._options.resize_size
        state = (seen["robot0_eef_pos"], axis_angle(seen["robot0_eef_quat"]), seen["robot0_gripper_qpos"])
        return {
            "observation/image": fit(upright(seen["agentview_image"]), size),
            "observation/wrist_image": fit(upright(seen["robot0_eye_in_hand_image"]), size),
            "observation/state": np.concatenate(state),
        }

    def step(self, action: Action) -> Step:
        self._seen, _, done, _ = self._env.step(action.tolist())
        return Step(bool(done), bool(done))  # LIBERO returns done when the task is done

    def frame(self) -> Frame:
        return upright(self._seen["agentview_image"])

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = self._task = None

    def _load(self, task_id: int) -> None:
        if task_id == self._task:
            return
        self.close()
        suite = self._options.suite
        self.instruction = self._backend.instruction(suite, task_id)
        self._states = self._backend.initial_states(suite, task_id)
        self._env = self._backend.make(suite, task_id, RESOLUTION)
        self._task = task_id


def axis_angle(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert the rotation of a quaternion (x, y, z, w) to an axis with the angle as its length."""
    w = min(1.0, max(-1.0, float(quaternion[3])))
    sine = math.sqrt(1.0 - w * w)
    if math.isclose(sine, 0.0):
        return np.zeros(3)
    return np.asarray(quaternion[:3]) * (2.0 * math.acos(w) / sine)


class InstalledLibero:
    """The installed package `libero`. Its renderer must be set in the environment variables before this is created."""

    def __init__(self) -> None:
        try:
            from libero.libero import benchmark, get_libero_path
            from libero.libero.envs import OffScreenRenderEnv
        # Its first import asks for a folder on standard input, or writes a configuration file.
        except (ImportError, OSError, EOFError) as error:
            raise EnvironmentMissing(f"LIBERO cannot be used on this worker: {error}") from error
        self._benchmarks, self._path, self._env = benchmark.get_benchmark_dict(), get_libero_path, OffScreenRenderEnv
        self._suites: dict[str, Any] = {}

    def instruction(self, suite: str, task_id: int) -> str:
        return str(self._task(suite, task_id).language)

    def initial_states(self, suite: str, task_id: int) -> Any:
        return self._suite(suite).get_task_init_states(task_id)

    def make(self, suite: str, task_id: int, resolution: int) -> Any:
        task = self._task(suite, task_id)
        file = Path(self._path("bddl_files")) / task.problem_folder / task.bddl_file
        return self._env(bddl_file_name=str(file), camera_heights=resolution, camera_widths=resolution)

    def _suite(self, name: str) -> Any:
        if name not in self._suites:
            self._suites[name] = self._benchmarks[name]()
        return self._suites[name]

    def _task(self, suite: str, task_id: int) -> Any:
        count = self._suite(suite).n_tasks
        if task_id >= count:
            raise EnvironmentFailed(f"Task {task_id} does not exist: {suite} has tasks 0 to {count - 1}.")
        return self._suite(suite).get_task(task_id)
