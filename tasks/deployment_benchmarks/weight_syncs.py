"""Weight updates of a rollout: announces versions and measures the time until every device has loaded them."""

from tasks.measurement.timed_job import MeasurementFailed
from tasks.rollouts.rollouts import Rollouts
from tasks.rollouts.weight_versions import SyncStatus


class WeightSyncs:
    """Announced versions of a rollout. A trainer that accepts stale samples does not wait: completion is polled
    later."""

    def __init__(self, rollouts: Rollouts, rollout: str) -> None:
        self._rollouts = rollouts
        self._rollout = rollout
        self._is_awaited = False
        self.seconds: list[float] = []
        """For each version that was not replaced, the seconds from its announcement until every device had it."""
        self.replaced = 0
        """Number of versions that the next version replaced before every device had them."""

    def announce(self, number: int, uri: str, sha256: str) -> None:
        self.replaced += not self.is_complete()
        self._is_awaited = True
        self._update(self._rollouts.announce(self._rollout, number, uri, sha256))

    def is_complete(self) -> bool:
        """Return whether every device has the latest version. Raises MeasurementFailed if the version was rolled
        back."""
        if self._is_awaited:
            self._update(self._rollouts.sync_status(self._rollout))
        return not self._is_awaited

    def reset(self) -> None:
        """Discard the times measured so far."""
        self.seconds.clear()
        self.replaced = 0

    def _update(self, status: SyncStatus) -> None:
        if status.state == "rolled_back":
            raise MeasurementFailed(f"Version {status.failed_number} was rolled back: {status.reason}.")
        if status.state == "synced":
            self.seconds.append(status.sync_s)
            self._is_awaited = False
