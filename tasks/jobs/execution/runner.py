"""Chunk runner of a worker process: leases chunks, reads their items, runs them, and then leases further chunks.

It never blocks on other workers: an item whose request another chunk computes is parked with the claim of that chunk,
and is pending again when the claim is released.
"""

import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from opentelemetry.trace import Tracer

from config.logging import job_context
from tasks.errors import StorageUnavailable, StoredFileMissing
from tasks.jobs.core_parts import CoreParts
from tasks.jobs.execution.batch_runner import BatchRunner
from tasks.jobs.execution.chunk_trace import ChunkTrace
from tasks.jobs.execution.entry import Entry, JobPlan, group_stage_after
from tasks.jobs.execution.held_chunks import HeldChunks
from tasks.jobs.execution.parking import Parking
from tasks.jobs.execution.part_mover import PartMover
from tasks.jobs.execution.recorder import Recorder
from tasks.jobs.execution.retry_redis import retry_redis
from tasks.jobs.model import ItemError, Result, StageRecord
from tasks.jobs.stage import AskStage, StreamStage, Work
from tasks.jobs.state.ledger import PARTS, Chunk
from tasks.jobs.state.outcome import settle
from tasks.jobs.state.payloads import Wanted
from tasks.runtime import Resource, Runtime
from tasks.worker_registry import Worker

log = logging.getLogger(__name__)

#: Seconds after which a task takes no further chunks and ends, so that a worker can shut down soon after a signal.
ADOPT_S = 2.0
#: Maximum number of jobs whose plan is cached per process.
MOST_PLANS = 1000


class Runner:
    def __init__(self, core: CoreParts, worker: Worker, runtime: Runtime, tracer: Tracer) -> None:
        self._ledger = core.ledger
        self._store = core.store
        self._payloads = core.payloads
        self._kinds = core.kinds
        self._dispatcher = core.dispatcher
        self._worker = worker.name
        self._incarnation = f"{worker.name}/{worker.incarnation}"
        self._queue = worker.queues[0]
        self._pool = worker.pool
        self._trace = ChunkTrace(tracer, self._worker, self._queue)
        self.held = HeldChunks(core.ledger, lambda: self.incarnation)
        self._parking = Parking(core.ledger, core.storage.faults, self.held.end)
        self._values = core.values()
        recorder = Recorder(
            core.ledger, core.cache, self._values, self._worker, self._trace, self._parking, self.held.end
        )
        fill = partial(core.dispatcher.fill, self._pool)
        self._parts = PartMover(core, self._parking)
        self._batches = BatchRunner(recorder, core.store, runtime, lambda: retry_redis(fill))
        self._plans: dict[str, JobPlan] = {}
        self._deferred: list[list[Chunk]] = []

    @property
    def incarnation(self) -> str:
        """Identity of this process as a lease holder. It includes the pid, because a prefork child differs from its
        parent."""
        return f"{self._incarnation}/{os.getpid()}"

    def run(self, chunk: str) -> None:
        """Run the chunk that a message names, or the next best chunk of the queue; then further chunks of the queue for
        ADOPT_S seconds."""
        deadline = time.monotonic() + ADOPT_S
        chunks = self._deferred.pop() if self._deferred else self._take(chunk)
        while True:
            pools = self._run_safely(chunks) if chunks else set()
            waiting = self._fill(pools)
            if self._deferred:  # leased chunks must run before the task ends
                chunks = self._deferred.pop()
                continue
            if not waiting:
                return
            if time.monotonic() > deadline:
                retry_redis(lambda: self._dispatcher.pass_on(self._queue))
                return
            if not (chunks := self._take()):  # another worker took them
                return

    def _fill(self, pools: Iterable[str] = ()) -> int:
        """Fill this worker's pool after these pools. Returns the number of chunks that wait on this worker's queue."""
        return retry_redis(lambda: self._dispatcher.fill(*pools, self._pool, queue=self._queue))

    def _take(self, chunk: str = "") -> list[Chunk]:
        lease_id = uuid4().hex
        take = partial(self._ledger.take, self._queue, chunk, self.incarnation, self._worker, lease_id)
        return self.held.take(lease_id, lambda: retry_redis(take))

    def close(self) -> None:
        self.held.close()

    def _run_safely(self, chunks: list[Chunk]) -> set[str]:
        """Run chunks, and forget them then, whatever happened."""
        try:
            return self._run_or_fail(chunks)
        finally:
            self.held.end(chunks)

    def _run_or_fail(self, chunks: list[Chunk]) -> set[str]:
        """Run chunks; an unexpected exception fails their items. Otherwise a live worker would keep the lease of a
        chunk that it does not run any more. Returns the pools that may get new work from it."""
        moves_parts = chunks[0].stage == PARTS
        try:
            with job_context({chunk.job_id for chunk in chunks}):
                return self._parts.move(self.incarnation, chunks) if moves_parts else self._run_chunks(chunks)
        except Exception as error:
            log.exception("chunks %s failed outside their engine", ", ".join(chunk.id for chunk in chunks))
            kind = "payload_lost" if isinstance(error, StoredFileMissing) else "internal_error"
            failure = Result(error=ItemError(kind, f"{type(error).__name__}: {error}"))
        if moves_parts:
            self._parts.keep_in_redis(chunks)
            return set()
        return {pool for chunk in chunks for pool in self._fail(chunk, chunk.items, failure, over=True)}

    def _fail(self, chunk: Chunk, indices: Sequence[int], failure: Result, over: bool) -> set[str]:
        """Fail items that cannot be run. Returns the pools that may get new work from it."""
        if over and failure.error:
            self._trace.end(chunk.id, failure.error.type)
        rows = retry_redis(partial(self._store.stages, chunk.job_id))
        stages = [StageRecord(row["name"], row["pool"], row["grouped"]) for row in rows]
        onward = replace(failure, next=group_stage_after(stages, chunk.stage))
        settled = [settle(index, {}, onward, 1, 0.0, self._worker) for index in indices]
        retry_redis(partial(self._ledger.commit, chunk, self._worker, 0.0, settled, over=over))
        return {stage.pool for stage in stages}

    def _run_chunks(self, chunks: list[Chunk]) -> set[str]:
        """Run chunks that share a batch key. Returns the pools that got new work from it."""
        chunks, plans, entries = self._load(chunks)
        if not chunks:
            return set()
        stored = {"cpu"} if any(chunk.layout.is_stored for chunk in chunks) else set()
        if any(chunk.layout.loop for chunk in chunks):  # the commit may have begun further prompts
            stored.add("device")
        plan = plans[chunks[0].job_id]
        stage = plan.stages[chunks[0].stage]
        if isinstance(stage, StreamStage):
            return self._run_stream(chunks, entries, plan, stage) | stored
        # A group is never divided, and API calls have separate limits, so such chunks run as a single batch.
        is_whole = stage.grouped or isinstance(stage, AskStage)
        size = max(1, len(entries) if is_whole else stage.limits.batch_items)
        onward: set[str] = set()
        for start in range(0, max(1, len(entries)), size):
            batch = entries[start : start + size]
            later = {entry.chunk.id for entry in entries[start + size :]}
            ending = [chunk for chunk in chunks if chunk.id not in later]
            chunks = [chunk for chunk in chunks if chunk.id in later]
            reached = self._batches.run(self.incarnation, batch, ending)
            onward |= {plan.stages[name].pool for name in reached}
        return onward | stored

    def _run_stream(
        self, chunks: list[Chunk], entries: list[Entry], plan: JobPlan, stage: StreamStage[Any]
    ) -> set[str]:
        """Run chunks on an engine with continuous batching, which admits chunks of the same batch key while it runs."""
        jobs = {chunk.job_id for chunk in chunks}

        def take() -> tuple[list[Chunk], list[Entry]]:
            if chunks[0].alone or self._deferred:
                return [], []
            taken = self._take() or (self._take() if self._fill() else [])
            if not taken or taken[0].alone or taken[0].stage != stage.name:
                self._deferred += [taken] if taken else []  # run after the engine has finished the current chunks
                return [], []
            try:
                taken, plans, more = self._load(taken)
            except StoredFileMissing:  # deferred: `_run_safely` fails the chunks later, and logs the error
                self._deferred.append(taken)
                return [], []
            if any(each.batch_key != plan.batch_key for each in plans.values()):
                self._deferred.append(taken)
                return [], []
            jobs.update(plans)
            return taken, more

        def pass_on(stages: set[str]) -> None:
            retry_redis(lambda: self._dispatcher.fill(*{plan.stages[name].pool for name in stages}))

        with job_context(jobs):  # the set grows while the engine runs
            reached = self._batches.run_stream(self.incarnation, stage, chunks, entries, take, jobs, pass_on)
        return {plan.stages[name].pool for name in reached}

    def _load(self, chunks: list[Chunk]) -> tuple[list[Chunk], dict[str, JobPlan], list[Entry]]:
        """Return the chunks that can run, the plans of their jobs, and their items with their payloads. Chunks of jobs
        that do not exist any more end. Chunks whose items cannot be read now are parked."""
        try:
            for chunk in chunks:
                self._values.require_room(chunk.layout.folder_of(chunk.job_id))
            return self._read(chunks)
        except StorageUnavailable as error:
            if len(chunks) == 1:
                self._parking.park(chunks[0], error)
                return [], {}, []
        runnable: list[Chunk] = []
        plans: dict[str, JobPlan] = {}
        entries: list[Entry] = []
        for chunk in chunks:  # one by one, so that jobs whose items are in Redis run
            read, found, more = self._load([chunk])
            runnable += read
            plans |= found
            entries += more
        return runnable, plans, entries

    def _read(self, chunks: list[Chunk]) -> tuple[list[Chunk], dict[str, JobPlan], list[Entry]]:
        if len(self._plans) > MOST_PLANS:
            self._plans = {}
        cached = self._plans  # a concurrent thread may replace the dict
        plans = {chunk.job_id: cached[chunk.job_id] for chunk in chunks if chunk.job_id in cached}
        unknown = list(dict.fromkeys(chunk.job_id for chunk in chunks if chunk.job_id not in plans))
        loaded, recipes = retry_redis(
            lambda: self._payloads.read_work([Wanted(each.job_id, each.layout, each.items) for each in chunks], unknown)
        )
        for job, recipe in recipes.items():
            plans[job] = self._plans[job] = JobPlan.of(recipe, self._kinds[recipe.kind])
        entries = []
        for chunk, found in zip(chunks, loaded, strict=True):
            if chunk.job_id not in plans:  # expired between dispatch and now
                retry_redis(partial(self._ledger.commit, chunk, self._worker, 0, (), over=True))
                continue
            plan = plans[chunk.job_id]
            if lost := [index for index in chunk.items if index not in found]:
                failure = Result(error=ItemError("payload_lost", "The payload of this item is lost: submit it again."))
                self._fail(chunk, lost, failure, over=False)
            for index, (payload, carry, attempts) in found.items():
                item = plan.kind.item_model.model_validate(payload)
                work = Work(index, item, carry, attempts, plan.spec, index % chunk.layout.trials)
                entries.append(Entry.of(chunk, payload, work, plan))
        return [chunk for chunk in chunks if chunk.job_id in plans], plans, entries


RUNNER = Resource[Runner]("runner")
"""Resource of a worker process: the runner of the chunks that its messages name."""
