"""Lost moments of the state Redis: intervals whose acknowledged writes a fault undid. Thread-safe.

A job that was accepted in such an interval may be unknown afterwards, and an acknowledged action may be undone. The
load clients ask here whether a fault explains an unknown job or an undone action; any other is a finding.
"""

import threading

#: Seconds by which the clocks of an interval and of a client's request may disagree: both are of this machine, but a
#: client notices the end of its request late on a busy machine.
SLACK_S = 0.5


class LostMoments:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._intervals: list[tuple[float, float]] = []

    def add(self, since: float, until: float) -> None:
        """Record an interval (`time.time`). Called before Redis starts again, so that no client sees it unannounced."""
        with self._lock:
            self._intervals.append((since, until))

    @property
    def number(self) -> int:
        with self._lock:
            return len(self._intervals)

    def has(self, began_at: float, ended_at: float) -> bool:
        """Return whether a request between these times may have been undone."""
        with self._lock:
            return any(since - SLACK_S <= ended_at and began_at <= until + SLACK_S for since, until in self._intervals)
