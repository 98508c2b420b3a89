"""Backlog limit: rejects submissions while too many items are queued.

The count is approximate: it is read from the ledger about once a second, and the items that this process accepts
meanwhile are added to it.
"""

import threading
import time
from pathlib import Path

from redis import Redis

from config import keys
from config.pools import STAGE_POOLS
from config.queues import PRIORITIES
from tasks import lua
from tasks.errors import BacklogFull

_SCRIPT = Path(__file__).with_name("scripts") / "count_waiting_items.lua"

#: TTL of the cached count, in seconds.
FRESH_S = 1.0
#: Maximum number of jobs read per pool and priority; each further job counts as one item.
MOST_JOBS = 2000


class Backlog:
    def __init__(self, state: Redis, most: int) -> None:
        self._most = most
        self._script = state.register_script(lua.load(_SCRIPT))
        self._lock = threading.Lock()
        self._items = 0
        self._at = float("-inf")

    def check(self) -> None:
        """Raise BacklogFull if the number of queued items has reached the limit."""
        with self._lock:
            if (now := time.monotonic()) - self._at > FRESH_S:
                self._items, self._at = self._count(), now
            items = self._items
        if items >= self._most:
            raise BacklogFull(
                f"{items:,} items are queued and the limit is {self._most:,}: submit again when some items are done."
            )

    def add(self, items: int) -> None:
        with self._lock:
            self._items += items

    def _count(self) -> int:
        ready = [keys.ready(pool, priority) for pool in STAGE_POOLS for priority in PRIORITIES]
        return int(self._script(keys=[], args=[MOST_JOBS, *ready]))
