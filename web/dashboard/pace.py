"""Items a second of each worker, from what the ledger counts for the jobs that are looked at, over the last seconds."""

from collections import Counter, deque
from collections.abc import Sequence

from tasks.jobs.model import Job

#: Seconds that a rate is taken over; and after which a look that was left off begins anew.
WINDOW_S = 8.0
GAP_S = 30.0


class Pace:
    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], float] = {}
        self._known: set[str] = set()
        self._done: Counter[str] = Counter()
        self._points: deque[tuple[float, dict[str, int]]] = deque()

    def rates(self, at: float, jobs: Sequence[Job]) -> dict[str, float]:
        """By worker. Nothing at the first look; a job that was made since the last one counts from nothing."""
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
