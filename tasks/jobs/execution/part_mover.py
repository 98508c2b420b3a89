"""Part mover: runs the chunks of the hidden last stage of stored jobs, which move outcomes from Redis to storage."""

from collections.abc import Sequence
from functools import partial

from tasks.errors import StorageUnavailable
from tasks.jobs.core_parts import CoreParts
from tasks.jobs.execution.parking import Parking
from tasks.jobs.execution.retry_redis import retry_redis
from tasks.jobs.state.ledger import Chunk

#: Timeout in seconds for moving one part.
MOVE_TIMEOUT_S = 300.0


class PartMover:
    def __init__(self, core: CoreParts, parking: Parking) -> None:
        self._ledger = core.ledger
        self._store = core.store
        self._outcomes = core.outcomes
        self._parking = parking

    def move(self, incarnation: str, chunks: Sequence[Chunk]) -> set[str]:
        """Move outcomes of stored jobs from Redis to the storage. Returns the pools where items may be admitted now. If
        the storage is unavailable, the parts that are left rest, and their outcomes stay in Redis until then."""
        pools: set[str] = set()
        for chunk in chunks:
            try:
                self._move(incarnation, chunk)
            except StorageUnavailable as error:
                self._parking.park(chunk, error)
            pools.update(each["pool"] for each in retry_redis(partial(self._store.stages, chunk.job_id)))
        return pools

    def _move(self, incarnation: str, chunk: Chunk) -> None:
        job = retry_redis(partial(self._store.job, chunk.job_id))
        for part in chunk.items:
            items = [(chunk.id, [(part, "")])]
            retry_redis(partial(self._ledger.begin, incarnation, chunk.lease_id, MOVE_TIMEOUT_S, items))
            over = part == chunk.items[-1]
            retry_redis(partial(self._outcomes.move, self._ledger, job, chunk, part, over))

    def keep_in_redis(self, chunks: Sequence[Chunk]) -> None:
        """End chunks whose parts cannot be moved: their outcomes stay in Redis."""
        for chunk in chunks:
            for part in chunk.items:
                retry_redis(partial(self._ledger.move, chunk, part, "", part == chunk.items[-1]))
