"""Filling the queues: chunks are written by the ledger, then announced on the broker. A lost message is sent again."""

import logging
import time
from collections.abc import Sequence
from typing import cast

from config.pools import QUEUED_POOLS, SHARED_QUEUES, queue_pool
from config.queues import Priority
from tasks.app import AssayCelery
from tasks.errors import BrokerUnavailable
from tasks.jobs.state.ledger import Ledger, Message, Reader
from tasks.registry import Registry, Worker

log = logging.getLogger(__name__)

TASK = "assay.chunk"
#: Seconds for which the list of workers is taken to be still true.
FLEET_S = 0.5


class Dispatcher:
    def __init__(self, app: AssayCelery, ledger: Ledger, registry: Registry) -> None:
        self._app = app
        self._ledger = ledger
        self._registry = registry
        self._fleet: dict[str, list[Reader]] = {}
        self._fleet_at = float("-inf")

    def fill(self, *pools: str) -> int:
        """Top the pools' queues up, those of all pools if none is named. Returns the number of chunks dispatched."""
        readers = self._readers()
        dispatched = 0
        for pool in dict.fromkeys(queue_pool(pool) for pool in pools or QUEUED_POOLS):
            if readers.get(pool):
                number, messages = self._ledger.fill(pool, readers[pool])
                dispatched += number
                self.publish(messages)
        return dispatched

    def pass_on(self, queue: str) -> None:
        """Announce what waits on a queue to its next reader."""
        if message := self._ledger.waiting(queue):
            self.publish([message])

    def has_messages(self, queue: str) -> bool:
        """Whether messages wait on the broker; not, when it is away."""
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
                # Dispatched but not announced: recovery announces it again once the broker is back.
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
        """Look at the registry again next time."""
        self._fleet_at = float("-inf")


def with_policy_servers(workers: Sequence[Worker]) -> list[Worker]:
    """Those that episodes are for: where a policy server is connected; where none is anywhere, all that wait for one,
    so that episodes are told what is wrong."""
    own = [worker for worker in workers if any(not server.elsewhere for server in worker.policies)]
    return [worker for worker in own if any(server.connected for server in worker.policies)] or own
