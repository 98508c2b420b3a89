"""Dispatcher: fills queues with chunks. The ledger writes a chunk first, then a broker message announces it.

Delivery is at least once: recovery sends a lost message again.
"""

import logging
import time
from collections.abc import Sequence
from typing import cast

from config.pools import QUEUED_POOLS, SHARED_QUEUES, queue_pool
from config.queues import Priority
from tasks.app import AssayCelery
from tasks.errors import BrokerUnavailable
from tasks.jobs.state.ledger import Ledger, Message, Reader
from tasks.worker_registry import Registry, Worker

log = logging.getLogger(__name__)

TASK = "assay.chunk"
#: TTL of the cached list of workers, in seconds.
FLEET_S = 0.5


class Dispatcher:
    def __init__(self, app: AssayCelery, ledger: Ledger, registry: Registry) -> None:
        self._app = app
        self._ledger = ledger
        self._registry = registry
        self._fleet: dict[str, list[Reader]] = {}
        self._fleet_at = float("-inf")

    def fill(self, *pools: str, queue: str = "") -> int:
        """Fill the queues of the named pools; without names, of every pool. Returns the number of chunks that wait on
        `queue`, a queue of these pools."""
        readers = self._readers()
        waiting = 0
        for pool in dict.fromkeys(queue_pool(pool) for pool in pools or QUEUED_POOLS):
            if readers.get(pool):
                waiting, messages = self._ledger.fill(pool, readers[pool], queue)
                self.publish(messages)
        return waiting

    def pass_on(self, queue: str) -> None:
        """Announce the best waiting chunk of a queue to its next consumer."""
        if message := self._ledger.waiting(queue):
            self.publish([message])

    def has_messages(self, queue: str) -> bool:
        """Return whether messages wait on the broker; False when the broker is unavailable."""
        try:
            return self._app.queued(queue) > 0
        except BrokerUnavailable:
            return False

    def publish(self, messages: list[Message]) -> None:
        for message in messages:
            try:
                self._app.publish(
                    TASK, message.queue, cast(Priority, message.priority), job_id=message.job_id, chunk=message.chunk
                )
            except BrokerUnavailable as error:
                # Dispatched but not announced: recovery announces it again once the broker is available.
                log.warning("chunk %s is not announced yet: %s", message.chunk, error)
                return

    def _readers(self) -> dict[str, list[Reader]]:
        now = time.monotonic()
        if now - self._fleet_at > FLEET_S:
            fleet: dict[str, list[Reader]] = {pool: [] for pool in QUEUED_POOLS}
            counts = dict.fromkeys(SHARED_QUEUES, 0)
            workers = self._registry.workers()
            with_policies = {worker.name for worker in with_policy_servers(workers)}
            for worker in workers:
                if worker.state == "stopping" or not worker.queues:
                    continue
                if worker.pool in counts:
                    counts[worker.pool] += worker.concurrency
                else:
                    also = "policy" if worker.name in with_policies else ""
                    fleet["device"].append(Reader(worker.queues[0], worker.concurrency, ",".join(worker.models), also))
            for pool, count in counts.items():
                if count:
                    fleet[pool].append(Reader(pool, count))
            self._fleet, self._fleet_at = fleet, now
        return self._fleet

    def forget_fleet(self) -> None:
        """Drop the cached list of workers, so that the next call reads the registry."""
        self._fleet_at = float("-inf")


def with_policy_servers(workers: Sequence[Worker]) -> list[Worker]:
    """Return the workers that run episodes: workers with a connected policy server. If no policy server is connected,
    return the workers that wait for their policy server, so that episodes fail with the cause instead of waiting."""
    own = [worker for worker in workers if any(not server.elsewhere for server in worker.policies)]
    return [worker for worker in own if any(server.connected for server in worker.policies)] or own
