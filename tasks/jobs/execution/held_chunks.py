"""Held chunks: the chunks that this process runs, compared with the chunks that the ledger says it holds.

Redis can lose its last moment, in a failover or a crash: then the ledger shows a chunk as held that this process ended
before. No other process may take it, since this process is alive. So a thread returns such chunks to the ledger.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from redis.exceptions import RedisError

from tasks.jobs.state.ledger import Chunk, Ledger

log = logging.getLogger(__name__)

#: Seconds between two comparisons.
COMPARE_S = 3.0


class HeldChunks:
    """Thread-safe."""

    def __init__(self, ledger: Ledger, incarnation: Callable[[], str]) -> None:
        """`incarnation`: identity of this process as a lease holder."""
        self._ledger = ledger
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._expected: set[str] = set()
        self._running: set[tuple[str, str]] = set()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, lease_id: str, take: Callable[[], list[Chunk]]) -> list[Chunk]:
        """Call `take`, which takes chunks with this lease_id. They count as running until `end`."""
        with self._lock:
            self._expected.add(lease_id)  # before the ledger knows it, so that no comparison sees an unknown lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._compare_forever, name="held-chunks", daemon=True)
                self._thread.start()
        chunks: list[Chunk] = []
        try:
            chunks = take()
        finally:
            with self._lock:
                self._running.update((chunk.id, lease_id) for chunk in chunks)
                self._expected.discard(lease_id)
        return chunks

    def end(self, chunks: Iterable[Chunk]) -> None:
        """Forget chunks that have ended. Idempotent."""
        with self._lock:
            self._running.difference_update((chunk.id, chunk.lease_id) for chunk in chunks)

    def compare(self) -> int:
        """Return the ledger's chunks of this process that it does not run. Returns their number."""
        incarnation = self._incarnation()
        held = self._ledger.held(incarnation)
        with self._lock:
            forgotten = [pair for pair in held if pair[1] not in self._expected and pair not in self._running]
        if not forgotten:
            return 0
        return self._return(incarnation, forgotten)

    def _return(self, incarnation: str, forgotten: Sequence[tuple[str, str]]) -> int:
        returned, items = self._ledger.return_chunks(incarnation, forgotten)
        if returned:  # a chunk that has just ended is forgotten by both
            log.warning(
                "Redis lost its last moment: %d chunks that this process had ended were held again; "
                "%d of their items are pending again",
                returned,
                items,
            )
        return returned

    def close(self) -> None:
        self._closed.set()
        if self._thread:
            self._thread.join(timeout=COMPARE_S)

    def _compare_forever(self) -> None:
        while not self._closed.wait(COMPARE_S):
            try:
                self.compare()
            except RedisError as error:  # it is compared again soon
                log.debug("cannot compare the held chunks: %s", error)
