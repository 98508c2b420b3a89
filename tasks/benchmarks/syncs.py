"""New versions of a rollout's weights, and how long its devices take to hold them."""

import time

from tasks.benchmarks.stand import MeasurementFailed
from tasks.rollouts.rollouts import Rollouts
from tasks.rollouts.versions import SyncStatus


class Syncs:
    """A trainer whose samples may be stale does not wait for devices: what became of a version is seen later."""

    def __init__(self, rollouts: Rollouts, rollout: str) -> None:
        self._rollouts = rollouts
        self._rollout = rollout
        self._announced: float | None = None
        self.seconds: list[float] = []
        """Of every version, from its announcement until all devices had it."""

    def announce(self, number: int, uri: str, sha256: str) -> None:
        if not self.is_over() and self._announced is not None:  # the next one takes its place
            self.seconds.append(time.monotonic() - self._announced)
        self._announced = time.monotonic()
        self._look(self._rollouts.announce(self._rollout, number, uri, sha256))

    def is_over(self) -> bool:
        """Whether all devices have what was announced last. Raises MeasurementFailed when none could take it."""
        if self._announced is not None:
            self._look(self._rollouts.sync_status(self._rollout))
        return self._announced is None

    def _look(self, status: SyncStatus) -> None:
        if status.state == "rolled_back":
            raise MeasurementFailed(f"Version {status.failed_number} was taken back: {status.reason}.")
        if status.state == "synced":
            self.seconds.append(status.sync_s)
            self._announced = None
