"""What waits, and for how long: chunks on each queue, and items of each pool that are in no chunk yet. Read from the
ledger in one step; of queues and pools that hold very much, the first are looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from config.pools import STAGE_POOLS
from config.queues import PRIORITIES
from tasks import lua
from tasks.jobs.queries import SCRIPTS

#: Chunks of each queue whose items are counted: more than usually wait on one.
MOST_CHUNKS = 200
#: Jobs looked at for each pool and priority, those that were given least first; those beyond count as one item each.
MOST_JOBS = 200


@dataclass(frozen=True, slots=True)
class QueueWait:
    queue: str
    chunks: int
    """That no worker has taken."""
    items: int
    """In these chunks."""
    oldest_s: float | None
    """How long the oldest of them has waited; None when none does."""
    running: int
    """Chunks that a worker has taken."""
    mode: str


@dataclass(frozen=True, slots=True)
class PoolWait:
    pool: str
    priority: str
    jobs: int
    items: int
    """That wait for a chunk."""
    oldest_s: float | None
    """Since the oldest of these jobs was made."""
    unserved_s: float | None
    """For how long the job that is worst off was given nothing, though items of it wait."""


@dataclass(frozen=True, slots=True)
class QueueDepths:
    at: float
    active: int
    """Jobs that have not ended."""
    queues: list[QueueWait]
    pools: list[PoolWait]
    """Once for each priority."""
    jobs: list[str]
    """Jobs with items that wait, in a chunk or for one."""


class QueueDepthReader:
    def __init__(self, state: Redis) -> None:
        self._script = state.register_script(lua.load(SCRIPTS / "read_queue_depths.lua"))

    def read(self, queues: Sequence[str] = ()) -> QueueDepths:
        """Of these queues, or of all that ever had work; and of all pools."""
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
