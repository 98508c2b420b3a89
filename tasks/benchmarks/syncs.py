"""New versions of a rollout's weights, and how long its devices take to hold them."""

from tasks.benchmarks.stand import MeasurementFailed
from tasks.rollouts.rollouts import Rollouts
from tasks.rollouts.versions import SyncStatus


class Syncs:
    """A trainer whose samples may be stale does not wait for devices: what became of a version is seen later."""

    def __init__(self, rollouts: Rollouts, rollout: str) -> None:
        self._rollouts = rollouts
        self._rollout = rollout
        self._is_awaited = False
        self.seconds: list[float] = []
        """Of every version that no other replaced, from its announcement until all devices had it."""
        self.replaced = 0
        """Versions of which nobody knows how long they would have taken: the next one came before."""

    def announce(self, number: int, uri: str, sha256: str) -> None:
        self.replaced += not self.is_over()
        self._is_awaited = True
        self._look(self._rollouts.announce(self._rollout, number, uri, sha256))

    def is_over(self) -> bool:
        """Whether all devices have what was announced last. Raises MeasurementFailed when none could take it."""
        if self._is_awaited:
            self._look(self._rollouts.sync_status(self._rollout))
        return not self._is_awaited

    def forget(self) -> None:
        """What was timed so far does not count."""
        self.seconds.clear()
        self.replaced = 0

    def _look(self, status: SyncStatus) -> None:
        if status.state == "rolled_back":
            raise MeasurementFailed(f"Version {status.failed_number} was taken back: {status.reason}.")
        if status.state == "synced":
            self.seconds.append(status.sync_s)
            self._is_awaited = False
