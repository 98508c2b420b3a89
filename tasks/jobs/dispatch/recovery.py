"""Recovery: returns the chunks of dead processes to the pending lists, and announces lost chunks again.

Runs in the parent process of every worker; each round is run by the first process that asks. Recovery depends on
the ledger and the registry only, and never reads the contents of the broker.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import cast

from redis.exceptions import RedisError

from config import keys
from tasks.errors import AssayError, StorageUnavailable
from tasks.jobs.core_parts import CoreParts
from tasks.jobs.job_retry import JobRetry
from tasks.jobs.queries.job_log import JobLog
from tasks.jobs.state.ledger import Message, Tick
from tasks.jobs.state.payloads import STAGING_S
from tasks.jobs.state.storage import folder_path
from tasks.redis_clock import ask_time, parse_time
from tasks.worker_registry import Worker

log = logging.getLogger(__name__)

#: Seconds between two rounds of the cluster.
TICK_S = 0.9
#: Seconds without a round after which recovery assumes that Redis stalled, or that no process was running.
STALL_S = 4.0
#: Number of expired jobs removed by one call of the script, and maximum seconds per round: about 40 % of Redis's time.
EXPIRED_JOBS = 50
SWEEP_S = 0.4
#: Maximum seconds that a round waits for the deletion of folders, which then continues without it.
DELETION_S = 5.0
#: Seconds that a chunk may wait on a queue with an idle consumer before it is announced again.
UNTAKEN_S = 2.0


class Recovery:
    def __init__(self, core: CoreParts, lease_s: float, idle_s: float) -> None:
        """`lease_s`: TTL of a heartbeat in seconds; `idle_s`: seconds without requests after which a rollout is
        ended."""
        self._state = core.state
        self._ledger = core.ledger
        self._storage = core.storage
        self._registry = core.registry
        self._dispatcher = core.dispatcher
        self._lease_s = lease_s
        self._idle_s = idle_s
        self._job_log = JobLog(core.state)
        self._job_retry = JobRetry(core)
        self._deletion: threading.Thread | None = None

    def tick(self) -> bool:
        """Run a round of recovery, unless another process has just run a round. Return whether it ran."""
        tick = self._ledger.tick(TICK_S, STALL_S, self._lease_s, STAGING_S)
        if tick is None:
            return False
        if tick.set_back_s > STALL_S:
            log.warning("the clock of the Redis server was set back by %.0f s; timeouts continue", tick.set_back_s)
        workers = self._registry.workers()
        self._reclaim_dead(workers, tick.is_forgiving)
        self._check_queues(workers, tick.is_forgiving)
        self._audit()
        self._remove_expired()
        self._ledger.tend(self._idle_s)
        self._job_log.write()
        self._dispatcher.forget_fleet()
        self._dispatcher.fill()  # after everything that works, and frees memory, while Redis is full
        self._delete_folders(tick)  # last: the storage may be slow or unavailable
        return True

    def _audit(self) -> None:
        """Repair jobs that stand still, and complete retries that were interrupted."""
        found = self._ledger.audit()
        for job, items in found.repaired.items():
            log.error("job %s stood still: %d items were in no place and are pending again", job, items)
        for job in found.interrupted:
            try:
                log.warning(
                    "the retry of job %s was interrupted, and continues: %d items", job, self._job_retry.run(job)
                )
            except AssayError as error:  # it was cancelled or removed meanwhile, or its storage is unavailable
                log.warning("the retry of job %s cannot continue: %s", job, error)

    def _remove_expired(self) -> None:
        """Remove expired jobs. This also records their folders as abandoned, so a crash leaks no files."""
        until = time.monotonic() + SWEEP_S
        while self._ledger.remove_expired(EXPIRED_JOBS) == EXPIRED_JOBS and time.monotonic() < until:
            pass

    def _delete_folders(self, tick: Tick) -> None:
        if tick.abandoned and not (self._deletion and self._deletion.is_alive()):
            # In a thread: the storage may hang, and this process also watches over its children.
            self._deletion = threading.Thread(
                target=self._delete, args=(tick.abandoned,), name="delete-folders", daemon=True
            )
            self._deletion.start()
            self._deletion.join(DELETION_S)

    def _delete(self, folders: Sequence[str]) -> None:
        failure: Exception | None = None
        for folder in folders:
            try:
                self._storage.delete(folder_path(folder))
                self._state.zrem(keys.staging(), folder)
            except (StorageUnavailable, RedisError) as error:
                failure = error
        if failure:
            log.warning("some of %d abandoned folders are deleted later: %s", len(folders), failure)

    def has_messages(self, queue: str) -> bool:
        """Return whether messages wait on the broker; False when the broker is unavailable."""
        return self._dispatcher.has_messages(queue)

    def bury(self, incarnation: str) -> None:
        """Reclaim the chunks of a process whose death is proven: its parent, or its launcher, saw it end."""
        if self._state.sismember(keys.holders(), incarnation):
            self._reclaim(incarnation, proven=True)
            self._dispatcher.forget_fleet()
            self._dispatcher.fill()

    def release(self, worker: str) -> None:
        """Reclaim the remaining chunks of this worker's processes. No item becomes a suspect."""
        for holder in cast(set[str], self._state.smembers(keys.holders())):
            if holder.startswith(f"{worker}/"):
                self._reclaim(holder, proven=False)

    def bury_worker(self, name: str) -> None:
        """Remove a worker whose death is proven from the registry, and reclaim the chunks of its processes."""
        if record := self._registry.get(name):
            self._registry.leave(record)  # first, so that its chunks are not dispatched to its own queue again
        for holder in cast(set[str], self._state.smembers(keys.holders())):
            if holder.split("/")[0] == name:
                self.bury(holder)

    def _reclaim_dead(self, workers: list[Worker], forgiving: bool) -> None:
        live = {worker.name: worker.incarnation for worker in workers}
        for holder in cast(set[str], self._state.smembers(keys.holders())):
            name, incarnation, _ = holder.split("/")
            if live.get(name) == incarnation:
                continue
            # A name is reused only after its last holder ended, so a replaced process is dead even after a stall. The
            # death is not proven to be the fault of an item: only the launcher knows its cause.
            if name in live or not forgiving:
                self._reclaim(holder, proven=False)

    def _reclaim(self, incarnation: str, proven: bool) -> None:
        put_back = self._ledger.reclaim(incarnation, proven)
        cause = "" if proven else " (no heartbeat)"
        log.warning("process %s is dead%s: %d items are pending again", incarnation, cause, put_back)

    def _check_queues(self, workers: list[Worker], forgiving: bool) -> None:
        readers: dict[str, int] = {}
        for worker in workers:
            for queue in worker.queues:
                readers[queue] = readers.get(queue, 0) + worker.concurrency
        for queue in cast(set[str], self._state.smembers(keys.queues())):
            if queue not in readers:
                if not forgiving and (returned := self._ledger.unqueue(queue)):
                    log.warning("no worker consumes %s: %d chunks return to the pending list", queue, returned)
            elif lost := self._untaken(queue, readers[queue]):
                log.warning("%s has an idle worker and waiting chunks: announcing %d again", queue, len(lost))
                self._dispatcher.publish(lost)

    def _untaken(self, queue: str, readers: int) -> list[Message]:
        """Return messages for chunks that an idle consumer should have taken by now: their first messages are lost."""
        pipeline = self._state.pipeline(transaction=False)
        pipeline.scard(keys.running(queue))
        pipeline.zrange(keys.dispatched(queue), 0, readers - 1)
        ask_time(pipeline)
        running, chunks, *time_replies = pipeline.execute()
        now = parse_time(*time_replies)
        messages = []
        for chunk in chunks[: max(0, readers - running)]:
            job, at, noticed_at, priority = self._state.hmget(
                keys.chunk(chunk), ["job_id", "dispatched_at", "noticed_at", "priority"]
            )
            if not job or not at or now - float(at) < UNTAKEN_S:
                continue
            if not noticed_at:  # a worker between two chunks also looks idle: check again in the next round
                self._state.hset(keys.chunk(chunk), "noticed_at", now)
            elif now - float(noticed_at) >= 1:
                messages.append(Message(queue, chunk, str(job), str(priority)))
        return messages
