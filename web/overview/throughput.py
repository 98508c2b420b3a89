"""Throughput of each worker in items per second over the last seconds, from the ledger's counts of each job."""

from collections import Counter, deque
from collections.abc import Sequence

from tasks.jobs.model import Job

#: Window of the rate in seconds, and the gap between two readings after which the measurement restarts.
WINDOW_S = 8.0
GAP_S = 30.0


class ThroughputMeter:
    """Sliding-window meter of the workers' throughput."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], float] = {}
        self._known: set[str] = set()
        self._done: Counter[str] = Counter()
        self._points: deque[tuple[float, dict[str, int]]] = deque()

    def rates(self, at: float, jobs: Sequence[Job]) -> dict[str, float]:
        """Return items per second by worker; empty at the first reading. A job created since the last reading counts
        from 0."""
        last = self._points[-1][0] if self._points else at
        if at - last > GAP_S:
            self._seen.clear()
            self._known.clear()
            self._points.clear()
        seen = {(job.id, worker): share["items"] for job in jobs for worker, share in job.workers.items()}
        for job in jobs:
            if not self._points or (job.id not in self._known and job.created_at < last):
                continue
            for worker, share in job.workers.items():
                self._done[worker] += max(0, int(share["items"] - self._seen.get((job.id, worker), 0)))
        self._seen, self._known = seen, {job.id for job in jobs}
        self._points.append((at, dict(self._done)))
        while len(self._points) > 2 and self._points[1][0] <= at - WINDOW_S:
            self._points.popleft()
        since, before = self._points[0]
        if at <= since:
            return {}
        return {worker: (done - before.get(worker, 0)) / (at - since) for worker, done in self._done.items()}
