"""Estimate of the concurrent episodes that a policy server needs, so that it never waits for simulators.

Each simulator costs memory and cores, so the estimate is no larger than necessary.
"""

import math
import threading

#: Episodes before the first measurement: one simulator steps while the server infers for the second episode.
FIRST = 2
#: Weight of earlier measurements in the decaying sums.
_INERTIA = 0.9


class Pace:
    """Thread-safe estimate from measured simulation and inference times."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._simulated_s = self._inferred_s = 0.0

    def note(self, simulated_s: float, inferred_s: float) -> None:
        """Record the simulation and inference seconds of an episode."""
        with self._lock:
            self._simulated_s = _INERTIA * self._simulated_s + simulated_s
            self._inferred_s = _INERTIA * self._inferred_s + inferred_s

    @property
    def episodes(self) -> int:
        """Episodes per server: while it infers for one episode, the other simulators must finish their steps."""
        if not self._inferred_s:
            return min(FIRST, self._most)
        return min(1 + max(1, math.ceil(self._simulated_s / self._inferred_s)), self._most)
