"""Queue depths: number and age of the waiting chunks of each queue, and of the pending items of each pool.

Read atomically from the ledger. Only the first chunks and jobs of very long queues and pools are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from config.pools import STAGE_POOLS
from config.queues import PRIORITIES
from tasks import lua
from tasks.jobs.queries import SCRIPTS

#: Maximum number of chunks per queue whose items are counted: more than usually wait on a queue.
MOST_CHUNKS = 200
#: Maximum number of jobs read per pool and priority, least served first; each further job counts as one item.
MOST_JOBS = 200


@dataclass(frozen=True, slots=True)
class QueueWait:
    queue: str
    chunks: int
    """Number of waiting chunks, which no worker has taken."""
    items: int
    """Number of items in the waiting chunks."""
    oldest_s: float | None
    """Age of the oldest waiting chunk in seconds; None when no chunk waits."""
    running: int
    """Number of chunks that a worker has taken."""
    mode: str


@dataclass(frozen=True, slots=True)
class PoolWait:
    pool: str
    priority: str
    jobs: int
    items: int
    """Number of pending items, which wait for a chunk."""
    oldest_s: float | None
    """Age of the oldest job with pending items, in seconds."""
    unserved_s: float | None
    """Longest time in seconds for which a job with pending items got no chunk."""


@dataclass(frozen=True, slots=True)
class QueueDepths:
    at: float
    active: int
    """Number of jobs that have not ended."""
    queues: list[QueueWait]
    pools: list[PoolWait]
    """An entry for each pool and priority."""
    jobs: list[str]
    """Ids of the jobs with waiting chunks or pending items."""


class QueueDepthReader:
    def __init__(self, state: Redis) -> None:
        self._script = state.register_script(lua.load(SCRIPTS / "read_queue_depths.lua"))

    def read(self, queues: Sequence[str] = ()) -> QueueDepths:
        """Return the depths of the given queues, or of every queue that ever had work; and of every pool."""
        pairs = [part for pool in STAGE_POOLS for priority in PRIORITIES for part in (pool, priority)]
        stamp, active, flat, pools, jobs = self._script(
            keys=[], args=[MOST_CHUNKS, MOST_JOBS, len(queues), *queues, *pairs]
        )
        now = float(stamp)
        return QueueDepths(
            now,
            int(active),
            [
                QueueWait(name, int(chunks), int(items), _age(now, oldest), int(running), mode)
                for name, chunks, items, oldest, running, mode in sorted(_rows(flat, 6))
            ],
            [
                PoolWait(pool, priority, int(jobs), int(items), _age(now, oldest), _age(now, unserved))
                for pool, priority, jobs, items, oldest, unserved in _rows(pools, 6)
            ],
            list(dict.fromkeys(jobs)),
        )


def _rows(flat: list[Any], width: int) -> list[list[Any]]:
    return [flat[at : at + width] for at in range(0, len(flat), width)]


def _age(now: float, since: str) -> float | None:
    return max(0.0, now - float(since)) if since else None
