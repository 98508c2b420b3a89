"""Default environment: a point in the plane must stop on one of four coloured targets; light enough for any test.

It needs a policy that understands its instruction: the targets differ in their colour only.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.episodes.model import EpisodeSpec
from tasks.errors import EnvironmentFailed
from workers.environments.environment import Action, Frame, Observation, Step

COLOURS = ("red", "green", "blue", "yellow")
_RGB = ((220, 50, 47), (60, 160, 60), (38, 100, 210), (230, 190, 30))
#: Length of one step at full speed; maximum distance and maximum step length at which the point has arrived.
STRIDE = 0.05
NEAR = 0.04
SLOW = 0.02
#: Minimum distance of targets from each other and from the start: a stop on a wrong target is never a success.
APART = 0.25
MAX_STEPS = 40
_SIZE = 96


class ReachEnvironment:
    replan_steps = 5
    action_size = 2

    def __init__(self) -> None:
        self.instruction, self.max_steps = "", MAX_STEPS
        self._position: NDArray[np.float64] = np.zeros(2)
        self._targets: NDArray[np.float64] = np.zeros((len(COLOURS), 2))
        self._task = 0

    def reset(self, spec: EpisodeSpec) -> None:
        if spec.task_id >= len(COLOURS):
            raise EnvironmentFailed(f"Task {spec.task_id} does not exist: reach has tasks 0 to {len(COLOURS) - 1}.")
        chance = np.random.default_rng((spec.seed, spec.init_state))
        places = [chance.random(2)]
        while len(places) <= len(COLOURS):
            place = chance.random(2)
            if all(np.linalg.norm(place - other) >= APART for other in places):
                places.append(place)
            elif chance.random() < 0.01:  # a bad start can leave no room for the last target
                places = places[:1]
        self._position, self._targets, self._task = places[0], np.array(places[1:]), spec.task_id
        self.instruction = f"reach the {COLOURS[spec.task_id]} target"
        self.max_steps = spec.max_steps or MAX_STEPS

    def observe(self) -> Observation:
        return {
            "observation/state": self._position.astype(np.float32),
            "observation/targets": self._targets.astype(np.float32),
        }

    def step(self, action: Action) -> Step:
        speed = float(np.linalg.norm(action))
        way = STRIDE * (action / speed if speed > 1 else action)
        self._position = np.clip(self._position + way, 0.0, 1.0)
        is_near = np.linalg.norm(self._position - self._targets[self._task]) <= NEAR
        success = bool(is_near and np.linalg.norm(way) <= SLOW)  # passing by is not arriving
        return Step(success, success)

    def frame(self) -> Frame:
        picture = np.full((_SIZE, _SIZE, 3), 245, np.uint8)
        for place, colour in zip(self._targets, _RGB, strict=True):
            _paint(picture, place, 4, colour)
        _paint(picture, self._position, 2, (20, 20, 20))
        return picture

    def close(self) -> None:
        """Do nothing: it holds no resources."""


def _paint(picture: Frame, place: NDArray[np.float64], half: int, colour: tuple[int, int, int]) -> None:
    x, y = np.rint(place * (_SIZE - 1)).astype(int)
    picture[max(0, _SIZE - 1 - y - half) : _SIZE - y + half, max(0, x - half) : x + half + 1] = colour
