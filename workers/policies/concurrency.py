"""How many episodes a server needs at a time so that it need not wait for simulators.

Each simulator costs memory and cores: as many as are of use, and no more.
"""

import math
import threading

#: Before anything is measured: one steps while the server infers for the other.
FIRST = 2
#: Share that the past has in the mean.
_INERTIA = 0.9


class Pace:
    """Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._simulated_s = self._inferred_s = 0.0

    def note(self, simulated_s: float, inferred_s: float) -> None:
        """What an episode took of both."""
        with self._lock:
            self._simulated_s = _INERTIA * self._simulated_s + simulated_s
            self._inferred_s = _INERTIA * self._inferred_s + inferred_s

    @property
    def episodes(self) -> int:
        """For a server: while it infers for one, the others must get their steps done."""
        if not self._inferred_s:
            return min(FIRST, self._most)
        return min(1 + max(1, math.ceil(self._simulated_s / self._inferred_s)), self._most)
