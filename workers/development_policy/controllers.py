"""Scripted controllers of the development policy: they follow an instruction if they understand it.

Each controller plans ahead with a model of its environment, because a plan is executed without new observations. With
an instruction for a different task it fails the task, as a good policy would. With an unknown instruction it stands
still.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Plan = NDArray[np.float32]

_COLOURS = ("red", "green", "blue", "yellow")
_STRIDE = 0.05
#: Gymnasium's Reacher: lengths of its links, and the effect of a full torque in one step of its simulation.
_LINKS = (0.1, 0.11)
_GEAR, _DAMPING, _STEP_S = 200.0, 1.0, 0.02


def plan(observation: Mapping[str, Any], horizon: int) -> Plan:
    """Plan the next actions. Raises KeyError or ValueError for an observation that no controller takes."""
    prompt = str(observation["prompt"])
    state = np.asarray(observation["observation/state"], np.float64)
    if "observation/targets" in observation:
        return _reach(state, np.asarray(observation["observation/targets"], np.float64), prompt, horizon)
    if "observation/goal" in observation and state.shape == (6,):
        return _bend_arm(state, np.asarray(observation["observation/goal"], np.float64), prompt, horizon)
    raise ValueError(f"no controller takes the observation {sorted(observation)} with a state of {state.shape}")


def _reach(position: NDArray[np.float64], targets: NDArray[np.float64], prompt: str, horizon: int) -> Plan:
    named = [index for index, colour in enumerate(_COLOURS) if re.search(rf"\b{colour}\b", prompt, re.IGNORECASE)]
    actions = np.zeros((horizon, 2), np.float32)
    if len(named) != 1:
        return actions
    for row in range(horizon):
        way = (targets[named[0]] - position) / _STRIDE
        actions[row] = way / max(1.0, float(np.linalg.norm(way)))
        position = position + _STRIDE * actions[row]
    return actions


def _bend_arm(state: NDArray[np.float64], goal: NDArray[np.float64], prompt: str, horizon: int) -> Plan:
    """Turn both joints of a planar arm until its tip is at the goal."""
    actions = np.zeros((horizon, 2), np.float32)
    if not re.search(r"\btarget\b", prompt, re.IGNORECASE):
        return actions
    angles = np.arctan2(state[2:4], state[:2])
    speeds = state[4:6]
    wanted = min(_solutions(goal), key=lambda pose: float(np.abs(_turn(pose - angles)).sum()))
    for row in range(horizon):
        # The torque that would bring the joints to their goal in three steps, with their current speed.
        ahead = _turn(wanted - angles) / (3 * _STEP_S)
        torque = ((ahead - speeds) / _STEP_S + _DAMPING * speeds) / _GEAR
        actions[row] = np.clip(torque, -1.0, 1.0)
        speeds = speeds + _STEP_S * (_GEAR * actions[row] - _DAMPING * speeds)
        angles = angles + _STEP_S * speeds
    return actions


def _solutions(goal: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return the two poses of the arm that reach the goal, or the reachable point next to it."""
    first, second = _LINKS
    cosine = (float(goal @ goal) - first**2 - second**2) / (2 * first * second)
    bend = float(np.arccos(np.clip(cosine, -1.0, 1.0)))
    poses = []
    for elbow in (bend, -bend):
        base = np.arctan2(goal[1], goal[0]) - np.arctan2(second * np.sin(elbow), first + second * np.cos(elbow))
        poses.append(np.array([base, elbow]))
    return poses


def _turn(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the same angle between -pi and pi: the shorter rotation."""
    turned: NDArray[np.float64] = (angle + np.pi) % (2 * np.pi) - np.pi
    return turned
