"""Bringing back what the dead held. Runs in the parent process of every worker; whoever ticks first does the round.

It never asks the broker what it holds: the ledger and the registry say what is to be done.
"""

import logging
from typing import cast

from config import keys
from tasks.errors import StorageUnavailable
from tasks.jobs.parts import CoreParts
from tasks.jobs.queries.job_log import JobLog
from tasks.jobs.state.ledger import Message, Tick
from tasks.jobs.state.payloads import STAGING_S
from tasks.jobs.state.storage import folder_path
from tasks.registry import Worker

log = logging.getLogger(__name__)

#: Seconds between two rounds, over all processes.
TICK_S = 0.9
#: Seconds without any round that mean Redis stood still, or that nobody was there.
STALL_S = 4.0
#: Seconds a chunk may lie dispatched beside an idle reader before it is announced again.
UNTAKEN_S = 2.0


class Recovery:
    def __init__(self, core: CoreParts, holder: str, lease_s: float, idle_s: float) -> None:
        """`holder`: names this process in the lock of a round; `idle_s`: seconds without request that end a rollout."""
        self._state = core.state
        self._ledger = core.ledger
        self._storage = core.storage
        self._registry = core.registry
        self._dispatcher = core.dispatcher
        self._holder = holder
        self._lease_s = lease_s
        self._idle_s = idle_s
        self._job_log = JobLog(core.state)

    def tick(self) -> bool:
        """One round, unless another process has just done one."""
        tick = self._ledger.tick(self._holder, TICK_S, STALL_S, self._lease_s, STAGING_S)
        if not tick.is_ours:
            return False
        workers = self._registry.workers()
        self._bury_the_dead(workers, tick.is_forgiving)
        self._look_after_queues(workers, tick.is_forgiving)
        self._ledger.tend(self._idle_s)
        self._dispatcher.forget_fleet()
        self._dispatcher.fill()
        self._job_log.write()
        self._sweep(tick)  # last: storage may be slow, or away
        return True

    def _sweep(self, tick: Tick) -> None:
        """Jobs first: each leaves its folder among the abandoned ones, whoever dies in between."""
        for job in tick.expired:
            self._ledger.remove(job)
        for folder in tick.abandoned:
            try:
                self._storage.delete(folder_path(folder))
            except StorageUnavailable as error:
                log.warning("%s is deleted later: %s", folder, error)
                continue
            self._state.zrem(keys.staging(), folder)

    def has_messages(self, queue: str) -> bool:
        """Whether messages wait on the broker; not, when it is away."""
        return self._dispatcher.has_messages(queue)

    def bury(self, incarnation: str) -> None:
        """This process is dead for certain: its parent, or its launcher, saw it end."""
        if self._state.sismember(keys.holders(), incarnation):
            self._reclaim(incarnation, proven=True)
            self._dispatcher.forget_fleet()
            self._dispatcher.fill()

    def release(self, worker: str) -> None:
        """What else the processes of this worker held is free, and nobody is to blame for it."""
        for holder in cast(set[str], self._state.smembers(keys.holders())):
            if holder.startswith(f"{worker}/"):
                self._reclaim(holder, proven=False)

    def bury_worker(self, name: str) -> None:
        """All processes of this worker are dead for certain."""
        if record := self._registry.get(name):
            self._registry.leave(record)  # first, so that its work is not given to its own queue
        for holder in cast(set[str], self._state.smembers(keys.holders())):
            if holder.split("/")[0] == name:
                self.bury(holder)

    def _bury_the_dead(self, workers: list[Worker], forgiving: bool) -> None:
        live = {worker.name: worker.incarnation for worker in workers}
        for holder in cast(set[str], self._state.smembers(keys.holders())):
            name, incarnation, _ = holder.split("/")
            if live.get(name) == incarnation:
                continue
            # Replaced: a name passes on only when its last holder is gone. Why it went, only its launcher knows.
            if name in live or not forgiving:
                self._reclaim(holder, proven=False)

    def _reclaim(self, incarnation: str, proven: bool) -> None:
        put_back = self._ledger.reclaim(incarnation, proven)
        log.warning("%s is gone%s: %d items wait again", incarnation, "" if proven else " (no heartbeat)", put_back)

    def _look_after_queues(self, workers: list[Worker], forgiving: bool) -> None:
        readers: dict[str, int] = {}
        for worker in workers:
            for queue in worker.queues:
                readers[queue] = readers.get(queue, 0) + worker.concurrency
        for queue in cast(set[str], self._state.smembers(keys.queues())):
            if queue not in readers:
                if not forgiving and (returned := self._ledger.unqueue(queue)):
                    log.warning("nobody reads %s: %d chunks go elsewhere", queue, returned)
            elif lost := self._untaken(queue, readers[queue]):
                log.warning("%s has an idle worker and untaken chunks: announcing %d again", queue, len(lost))
                self._dispatcher.publish(lost)

    def _untaken(self, queue: str, readers: int) -> list[Message]:
        """Chunks that an idle reader should have taken by now: their messages are lost."""
        pipeline = self._state.pipeline(transaction=False)
        pipeline.scard(keys.running(queue))
        pipeline.zrange(keys.dispatched(queue), 0, readers - 1)
        pipeline.time()
        running, chunks, (seconds, _) = pipeline.execute()
        messages = []
        for chunk in chunks[: max(0, readers - running)]:
            job, at, noticed_at, priority = self._state.hmget(
                keys.chunk(chunk), ["job_id", "dispatched_at", "noticed_at", "priority"]
            )
            if not job or not at or seconds - float(at) < UNTAKEN_S:
                continue
            if not noticed_at:  # a worker between two chunks looks idle too
                self._state.hset(keys.chunk(chunk), "noticed_at", seconds)
            elif seconds - float(noticed_at) >= 1:
                messages.append(Message(queue, chunk, str(job), str(priority)))
        return messages
