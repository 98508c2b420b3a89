"""Execution of one episode: simulator, policy server and instruction, until the task is done or its steps are used up.

Errors that prevent an episode are raised. An unsuccessful episode is a result, not an error.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.episodes.model import Episode, EpisodeSpec
from tasks.errors import EpisodeTimeout, NoLongerWanted, PolicyFailed, PolicyUnavailable
from workers.environments.simulator import Simulator
from workers.policies.connection import Reply
from workers.policies.pool import Pool


@dataclass(frozen=True, slots=True)
class Policy:
    """The server of a pool that an episode keeps; other episodes may use the server between its calls."""

    pool: Pool
    url: str
    away_s: float = 60.0
    """Maximum seconds without a connection to the server."""
    turn_s: float = math.inf
    """Maximum seconds to wait while other episodes use the server."""

    def infer(self, observation: Mapping[str, Any], left_s: float = math.inf) -> Reply:
        """Infer a plan. `left_s`: remaining seconds of the episode. A call in flight is not cut off after them, which
        would cost the connection, and the server would continue the inference anyway."""
        return self.pool.infer(observation, min(self.turn_s, left_s), url=self.url, away_s=self.away_s)


def run_episode(
    simulator: Simulator,
    policy: Policy,
    spec: EpisodeSpec,
    deadline: float = math.inf,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Episode:
    """Run an episode until `deadline`, by time.monotonic(). Raises PolicyUnavailable, PolicyTimeout, PolicyBroken,
    PolicyFailed, SimulatorLost, EnvironmentMissing, EnvironmentFailed, EpisodeTimeout or NoLongerWanted."""
    began = time.monotonic()
    start = simulator.start(spec)
    instruction = spec.instruction or start.instruction
    observation, times_ms, simulated_s = start.observation, [], 0.0
    first: Reply | None = None
    while True:
        if is_cancelled():
            raise NoLongerWanted
        if (left_s := deadline - time.monotonic()) <= 0:
            raise EpisodeTimeout(f"The episode did not end within {time.monotonic() - began:.0f} s.")
        reply = policy.infer(observation | {"prompt": instruction}, left_s)
        times_ms.append(round(1000 * reply.seconds, 3))
        first = first or reply
        if reply.policy != first.policy:
            raise PolicyUnavailable(f"The policy server {policy.url} was replaced by another in mid-episode.")
        plan = read_plan(reply.values, start.replan_steps, start.action_size)
        planned = time.monotonic()
        progress = simulator.advance(plan)
        simulated_s += time.monotonic() - planned
        if progress.done:
            break
        observation = progress.observation
    return Episode(
        success=progress.success,
        steps=progress.steps,
        seconds=time.monotonic() - began,
        instruction=instruction,
        inference_ms=tuple(times_ms),
        simulated_s=simulated_s,
        server=policy.url,
        policy=reply.policy.name,
        version=reply.policy.version,
        video=simulator.video() if spec.video else None,
    )


def read_plan(values: Mapping[str, Any], steps: int, size: int) -> NDArray[np.float64]:
    """Return the first actions of a reply, one per row. Raises PolicyFailed: a retry would get no better reply."""
    actions = values.get("actions")
    if not isinstance(actions, np.ndarray) or actions.dtype.kind not in "fiu":
        raise PolicyFailed(f"The policy's reply has no numbers under `actions`; it has {sorted(map(str, values))}.")
    if actions.ndim != 2 or actions.shape[1] != size:
        raise PolicyFailed(f"The policy's actions have the shape {actions.shape}; the environment takes (n, {size}).")
    if len(actions) < steps:
        raise PolicyFailed(f"The policy plans {len(actions)} steps; the environment needs {steps} steps per plan.")
    plan = np.asarray(actions[:steps], np.float64)
    if not np.isfinite(plan).all():
        raise PolicyFailed("The policy's actions contain NaN or infinite numbers.")
    return plan
