"""Memory budget of the state Redis: rejects submissions while Redis is nearly full, so that accepted jobs can end.

The memory above the budget is a reserve for the outcomes of accepted jobs. The usage is read about once a second.
Without a `maxmemory`, or where Redis forbids INFO, there is no budget.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from tasks.errors import MemoryFull

#: TTL of the cached usage, in seconds.
FRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory of a Redis server in bytes."""

    used: int
    most: int
    """`maxmemory`; 0 if it has none."""

    @property
    def share(self) -> float:
        return self.used / self.most if self.most else 0.0

    def __str__(self) -> str:
        return f"{self.used / 1e6:,.0f} of {self.most / 1e6:,.0f} MB"


def read_usage(state: Redis) -> MemoryUsage:
    """Return the memory that counts against `maxmemory`, without the buffers of replicas and the append-only file."""
    try:
        info: Any = state.info("memory")
    except ResponseError:  # managed Redis may forbid INFO
        return MemoryUsage(0, 0)
    return MemoryUsage(info["used_memory"] - info.get("mem_not_counted_for_evict", 0), info.get("maxmemory", 0))


class MemoryBudget:
    def __init__(self, state: Redis, share: float) -> None:
        """`share`: share of `maxmemory` above which submissions are rejected."""
        self._state = state
        self._share = share
        self._lock = threading.Lock()
        self._usage = MemoryUsage(0, 0)
        self._at = float("-inf")

    def check(self) -> None:
        """Raise MemoryFull if the budget is used up."""
        if problem := self.problem():
            raise MemoryFull(problem)

    def problem(self) -> str | None:
        """Return a sentence for users if the budget is used up, else None."""
        with self._lock:
            if (now := time.monotonic()) - self._at > FRESH_S:
                self._usage, self._at = read_usage(self._state), now
            usage = self._usage
        if usage.share <= self._share:
            return None
        return (
            f"The state Redis uses {usage}, and new jobs are refused above {100 * self._share:.0f} %: submit again "
            "when jobs have expired, delete jobs (`assay cancel --purge`), or raise its maxmemory."
        )
