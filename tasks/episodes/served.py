"""Which policy is served now, as far as the workers tell."""

import threading
import time

from tasks.episodes.servers import one_policy
from tasks.registry import Registry

#: Seconds for which an answer is taken to be still true.
FRESH_S = 1.0


class ServedPolicy:
    """Thread-safe."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._answer: dict[str, str] | None = None
        self._at = float("-inf")

    def __call__(self) -> dict[str, str] | None:
        """Name and version of the one that all servers serve; None while there are several, or it is not known."""
        with self._lock:
            if time.monotonic() - self._at > FRESH_S:
                self._answer = one_policy([each for worker in self._registry.workers() for each in worker.policies])
                self._at = time.monotonic()
            return self._answer
