"""Name and version of the policy that is served now, according to the workers' registry entries."""

import threading
import time

from tasks.episodes.policy_servers import common_policy
from tasks.worker_registry import Registry

#: Seconds for which an answer is cached.
FRESH_S = 1.0


class ServedPolicy:
    """Cached lookup of the served policy. Thread-safe."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._answer: dict[str, str] | None = None
        self._at = float("-inf")

    def __call__(self) -> dict[str, str] | None:
        """Return name and version of the policy that every server serves; None if servers differ or report none."""
        with self._lock:
            if time.monotonic() - self._at > FRESH_S:
                self._answer = common_policy([each for worker in self._registry.workers() for each in worker.policies])
                self._at = time.monotonic()
            return self._answer
