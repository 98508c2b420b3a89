"""Parking: work whose storage is unavailable goes back to the ledger and rests, so that it never holds a worker.

No result is lost: outcomes stay in Redis, and an item whose value could not be written runs again. The stage of the job
is tried again after a delay that grows with the outage. An outage counts as no attempt of an item.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from tasks.errors import StorageUnavailable
from tasks.jobs.execution.retry_redis import retry_redis
from tasks.jobs.state.ledger import Chunk, Ledger
from tasks.jobs.state.storage_faults import StorageFaults

log = logging.getLogger(__name__)


class Parking:
    def __init__(self, ledger: Ledger, faults: StorageFaults, end: Callable[[Iterable[Chunk]], None]) -> None:
        """`end` is called with chunks that were parked."""
        self._ledger = ledger
        self._faults = faults
        self._end = end

    def park(self, chunk: Chunk, error: StorageUnavailable) -> None:
        """End a chunk that cannot run: its items are pending again, and its stage rests."""
        self._rest(chunk, error, [chunk])
        self._end([chunk])

    def rest(self, chunk: Chunk, error: StorageUnavailable) -> None:
        """Let the stage of a chunk rest, and leave the chunk to its commit."""
        self._rest(chunk, error, [])

    def _rest(self, chunk: Chunk, error: StorageUnavailable, ending: list[Chunk]) -> None:
        delay_s = self._faults.delay_s(error.access)
        retry_redis(partial(self._ledger.park, chunk.job_id, chunk.stage, delay_s, ending))
        log.debug("stage %s of job %s rests for %.1f s: %s", chunk.stage, chunk.job_id, delay_s, error)
