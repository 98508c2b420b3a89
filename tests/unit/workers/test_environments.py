"""Environments without a simulator: the light environment, LIBERO with a recording stand-in, pictures and videos."""

import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openpi_client import image_tools
from PIL import Image

from tasks.episodes.model import EpisodeSpec, Libero, Success
from tasks.errors import EnvironmentFailed
from workers.development_policy.controllers import plan
from workers.environments import rendering
from workers.environments.adapters import Progress, adapter_of
from workers.environments.images import fit, upright
from workers.environments.libero import MAX_STEPS, LiberoEnvironment, axis_angle
from workers.environments.reach import COLOURS, ReachEnvironment
from workers.environments.rendering import has_osmesa, rendering_environment
from workers.environments.simulator import LocalSimulator
from workers.environments.video import MAX_FRAMES, Recorder


def run_reach(spec: EpisodeSpec, instruction: str) -> tuple[bool, int]:
    simulator = LocalSimulator(ReachEnvironment())
    observation = simulator.start(spec).observation
    while True:
        progress = simulator.advance(plan(observation | {"prompt": instruction}, 10)[:5])
        if progress.done:
            return progress.success, progress.steps
        observation = progress.observation


@pytest.mark.parametrize("seed", range(20))
def test_the_light_task_is_solved_only_by_its_own_instruction(seed: int) -> None:
    for task, colour in enumerate(COLOURS):
        spec = EpisodeSpec(task_id=task, seed=seed)
        assert run_reach(spec, f"reach the {colour} target")[0]
        other = COLOURS[(task + 1 + seed % 3) % 4]
        assert run_reach(spec, f"reach the {other} target") == (False, 40)
        assert run_reach(spec, "stay where you are") == (False, 40)


def test_an_episode_depends_on_its_seed_and_initial_state_alone() -> None:
    def begin(**spec: Any) -> list[float]:
        environment = ReachEnvironment()
        environment.reset(EpisodeSpec(**spec))
        seen = environment.observe()
        return [*seen["observation/state"].tolist(), *seen["observation/targets"].ravel().tolist()]

    np.random.seed(1)  # the global generator must have no influence
    first = begin(seed=3)
    np.random.seed(2)
    assert begin(seed=3) == first
    assert begin(seed=4) != first
    assert begin(seed=3, init_state=1) != first
    assert begin(seed=3, task_id=2) == first, "only the instruction tells the tasks apart"


def test_a_missing_task_is_reported() -> None:
    with pytest.raises(EnvironmentFailed, match="reach has tasks 0 to 3"):
        LocalSimulator(ReachEnvironment()).start(EpisodeSpec(task_id=4))


# --- LIBERO, step by step ---


class RecordingLibero:
    """Stand-in for the used part of LIBERO's interface; records each call."""

    def __init__(self, succeeds_after: int) -> None:
        self.done: list[Any] = []
        self._succeeds_after = succeeds_after
        self._steps = 0

    # interface of the package
    def instruction(self, suite: str, task_id: int) -> str:
        return f"task {task_id} of {suite}"

    def initial_states(self, suite: str, task_id: int) -> list[str]:
        return [f"{suite}/{task_id}/{number}" for number in range(3)]

    def make(self, suite: str, task_id: int, resolution: int) -> "RecordingLibero":
        self.done.append(("make", suite, task_id, resolution))
        return self

    # interface of an environment
    def seed(self, seed: int) -> None:
        self.done.append(("seed", seed))

    def reset(self) -> None:
        self._steps = 0
        self.done.append("reset")

    def set_init_state(self, state: str) -> dict[str, Any]:
        self.done.append(("state", state))
        return self._observation()

    def step(self, action: list[float]) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        self._steps += 1
        self.done.append(("step", action))
        return self._observation(), 0.0, self._steps >= self._succeeds_after, {}

    def close(self) -> None:
        self.done.append("close")

    def _observation(self) -> dict[str, Any]:
        picture = np.zeros((256, 256, 3), np.uint8)
        picture[0, 0] = (self._steps, 1, 2)
        wrist = np.full((256, 256, 3), 9, np.uint8)
        return {
            "agentview_image": picture,
            "robot0_eye_in_hand_image": wrist,
            "robot0_eef_pos": np.array([0.1, 0.2, 0.3]),
            "robot0_eef_quat": np.array([0.0, 0.0, np.sin(0.5), np.cos(0.5)]),
            "robot0_gripper_qpos": np.array([0.04, -0.04]),
        }


def test_libero_is_seeded_reset_initialized_and_settled_before_the_policy_acts() -> None:
    libero = RecordingLibero(succeeds_after=1000)
    simulator = LocalSimulator(LiberoEnvironment(Libero(suite="libero_object"), libero))
    start = simulator.start(EpisodeSpec(task_id=4, seed=11, init_state=2))
    waiting = ("step", [0.0] * 6 + [-1.0])
    assert libero.done == [
        ("make", "libero_object", 4, 256), ("seed", 11), "reset", ("state", "libero_object/4/2"), *[waiting] * 10,
    ]  # fmt: skip
    assert (start.instruction, start.max_steps) == ("task 4 of libero_object", 280)
    assert (start.replan_steps, start.action_size) == (5, 7)


def test_liberos_observation_is_rotated_resized_and_flattened_as_in_training() -> None:
    simulator = LocalSimulator(LiberoEnvironment(Libero(), RecordingLibero(succeeds_after=1000)))
    seen = simulator.start(EpisodeSpec()).observation
    assert sorted(seen) == ["observation/image", "observation/state", "observation/wrist_image"]
    assert seen["observation/image"].shape == seen["observation/wrist_image"].shape == (224, 224, 3)
    assert seen["observation/image"].dtype == np.uint8
    assert seen["observation/image"][-1, -1].any(), "the corner at the top left is now at the bottom right"
    assert not seen["observation/image"][0, 0].any()
    assert np.allclose(seen["observation/state"], [0.1, 0.2, 0.3, 0.0, 0.0, 1.0, 0.04, -0.04])


def test_a_libero_episode_ends_at_its_first_successful_step() -> None:
    libero = RecordingLibero(succeeds_after=10 + 8)
    simulator = LocalSimulator(LiberoEnvironment(Libero(), libero))
    simulator.start(EpisodeSpec())
    actions = np.arange(70, dtype=np.float32).reshape(10, 7)
    first, second = simulator.advance(actions[:5]), simulator.advance(actions[5:])
    assert (first.done, first.success, first.steps) == (False, False, 5)
    assert (second.done, second.success, second.steps) == (True, True, 8)
    done = [entry[1] for entry in libero.done if entry[0] == "step"][10:]
    assert done == actions[:8].tolist(), "as lists of floats, in order"


@pytest.mark.parametrize(("suite", "steps"), MAX_STEPS.items())
def test_liberos_suites_have_their_own_step_limits(suite: Any, steps: int) -> None:
    libero = RecordingLibero(succeeds_after=10_000)
    simulator = LocalSimulator(LiberoEnvironment(Libero(suite=suite), libero))
    assert simulator.start(EpisodeSpec()).max_steps == steps
    simulator = LocalSimulator(LiberoEnvironment(Libero(suite=suite, num_steps_wait=0), libero))
    simulator.start(EpisodeSpec(max_steps=3))
    progress = simulator.advance(np.zeros((5, 7)))
    assert (progress.done, progress.success, progress.steps) == (True, False, 3)


def test_libero_keeps_its_scene_for_the_same_task_and_seeds_every_episode() -> None:
    libero = RecordingLibero(succeeds_after=1000)
    simulator = LocalSimulator(LiberoEnvironment(Libero(num_steps_wait=0), libero))
    for spec in (EpisodeSpec(seed=1), EpisodeSpec(seed=2, init_state=1), EpisodeSpec(seed=1, task_id=1)):
        simulator.start(spec)
    kept = [entry for entry in libero.done if entry[0] in ("make", "seed") or entry == "close"]
    made, made_again = ("make", "libero_spatial", 0, 256), ("make", "libero_spatial", 1, 256)
    assert kept == [made, ("seed", 1), ("seed", 2), "close", made_again, ("seed", 1)]
    with pytest.raises(EnvironmentFailed, match="Initial state 3 does not exist"):
        simulator.start(EpisodeSpec(init_state=3))


def test_an_exception_of_a_simulator_is_an_environment_failure() -> None:
    libero = RecordingLibero(succeeds_after=1000)
    simulator = LocalSimulator(LiberoEnvironment(Libero(), libero))
    simulator.start(EpisodeSpec())
    libero.step = None  # type: ignore[assignment, method-assign]
    with pytest.raises(EnvironmentFailed, match="TypeError"):
        simulator.advance(np.zeros((5, 7)))


def test_rotations_as_axis_and_angle() -> None:
    assert axis_angle(np.array([0.0, 0.0, 0.0, 1.0])).tolist() == [0.0, 0.0, 0.0]
    assert axis_angle(np.array([0.0, 0.0, 0.0, 1.0000001])).tolist() == [0.0, 0.0, 0.0]
    half = np.sin(np.pi / 4)
    assert np.allclose(axis_angle(np.array([half, 0.0, 0.0, half])), [np.pi / 2, 0, 0])


# --- pictures ---


@pytest.mark.parametrize("shape", [(256, 256), (480, 640), (640, 480), (224, 224), (100, 333), (37, 37)])
def test_pictures_are_resized_exactly_as_openpi_does(shape: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8)
    assert np.array_equal(fit(picture, 224), image_tools.resize_with_pad(picture, 224, 224))


def test_upright_rotates_by_180_degrees() -> None:
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert upright(picture).tolist() == np.rot90(picture, 2).tolist()
    assert upright(picture).flags["C_CONTIGUOUS"]


def test_a_video_samples_the_pictures_evenly() -> None:
    recorder = Recorder()
    kept = 0
    for number in range(2 * MAX_FRAMES + 10):
        if recorder.wants_next():
            kept += 1
            recorder.add(
                np.full((8, 8, 3), number // 4 * 97 % 256, np.uint8)
            )  # this picture differs from its neighbours
    video = Image.open(BytesIO(recorder.encode()))
    assert video.format == "WEBP"
    assert MAX_FRAMES // 2 < video.n_frames <= MAX_FRAMES
    assert kept < 2 * MAX_FRAMES, "pictures that would not be kept are not asked for"


# --- choice of the renderer by device ---


@pytest.mark.parametrize(("listed", "found"), [("libOSMesa.so.8 (libc6) => /lib/libOSMesa.so.8", True), ("", False)])
def test_osmesa_is_detected_without_a_temporary_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listed: str, found: bool
) -> None:
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path / "nowhere")
    )  # a temporary file would fail here, or remain after a kill
    monkeypatch.setattr(rendering, "LIBRARIES", ("echo", listed))
    assert has_osmesa() == found


def test_without_a_library_list_osmesa_is_searched_on_the_linkers_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rendering, "LIBRARIES", ("/nowhere/ldconfig", "-p"))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert not has_osmesa()
    (tmp_path / "libOSMesa.so.8").touch()
    assert has_osmesa()


@pytest.mark.parametrize(
    ("devices", "osmesa", "wanted"),
    [
        (("3",), True, {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "3"}),
        (("GPU-8f1c",), False, {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "0"}),
        ((), True, {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}),
        ((), False, {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "0"}),
    ],
)
def test_the_renderer_is_chosen_by_the_device(devices: tuple[str, ...], osmesa: bool, wanted: dict[str, str]) -> None:
    assert rendering_environment(devices, osmesa) == wanted | {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("success", "progress", "wanted"),
    [
        (Success(info="is_success"), {"info": {"is_success": 1.0}}, True),
        (Success(info="is_success"), {"info": {"is_success": 0.0}}, False),
        (Success(info="is_success"), {"info": {}}, False),
        (Success(total_reward=10.0), {"total_reward": 10.0}, True),
        (Success(total_reward=10.0), {"total_reward": 9.9}, False),
        (Success(survives=True), {"is_last": True}, True),
        (Success(survives=True), {"is_last": True, "terminated": True}, False),
        (Success(survives=True), {"is_last": False}, False),
        (Success(survives=True, total_reward=1.0), {"is_last": True, "total_reward": 0.0}, False),
    ],
)
def test_a_given_success_rule_is_applied(success: Success, progress: dict[str, Any], wanted: bool) -> None:
    plain = {"observation": None, "info": {}, "total_reward": 0.0, "is_last": False, "terminated": False}
    adapter = adapter_of(success)
    assert adapter.is_success(Progress(**plain | progress)) is wanted  # type: ignore[arg-type]
    assert adapter.rule
