"""Running chunks in a worker: taking them, reading their items, and taking more while there is more.

Nothing here blocks on another worker. What another chunk computes is parked with its claim and comes back later.
"""

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

from config.logging import bound
from tasks.errors import StoredFileMissing
from tasks.jobs.batch import BatchRunner
from tasks.jobs.books import Books
from tasks.jobs.cache import Cache, request_hash
from tasks.jobs.dispatch import Dispatcher
from tasks.jobs.entry import Entry, Known, group_stage_after
from tasks.jobs.kinds import Kinds, Work, answers_of
from tasks.jobs.ledger import PARTS, Chunk, Ledger
from tasks.jobs.loop import as_loop
from tasks.jobs.model import ItemError, Result, Stage
from tasks.jobs.outcome import settle
from tasks.jobs.outcomes import Outcomes
from tasks.jobs.patience import patiently
from tasks.jobs.payloads import Payloads, Wanted
from tasks.jobs.storage import is_stored
from tasks.jobs.store import Store
from tasks.jobs.trace import ChunkTrace
from tasks.jobs.trials import key_of, trials_of
from tasks.jobs.values import Values
from tasks.runtime import Means
from tasks.tracing import NO_TRACER, Tracer

log = logging.getLogger(__name__)

#: Seconds a task goes on taking chunks before it makes room, so that a worker told to stop soon does.
ADOPT_S = 2.0
#: Seconds it may take to move one part.
MOVE_TIMEOUT_S = 300.0
#: Jobs whose spec a process remembers.
MOST_KNOWN = 1000


class Runner:
    def __init__(
        self, ledger: Ledger, store: Store, payloads: Payloads, outcomes: Outcomes, values: Values, cache: Cache,
        kinds: Kinds, dispatcher: Dispatcher, means: Means, worker: str, incarnation: str, queue: str, pool: str,
        tracer: Tracer = NO_TRACER,
    ) -> None:  # fmt: skip
        fill = partial(dispatcher.fill, pool)
        self._trace = ChunkTrace(tracer, worker, queue)
        books = Books(ledger, cache, values, worker, self._trace)
        self._batches = BatchRunner(books, store, means, worker, lambda: patiently(fill))
        self._ledger = ledger
        self._store = store
        self._payloads = payloads
        self._outcomes = outcomes
        self._kinds = kinds
        self._dispatcher = dispatcher
        self._worker = worker
        self._incarnation = incarnation
        self._queue = queue
        self._pool = pool
        self._known: dict[str, Known] = {}
        self._put_by: list[list[Chunk]] = []

    @property
    def incarnation(self) -> str:
        """This process: a prefork child is not its parent."""
        return f"{self._incarnation}/{os.getpid()}"

    def run(self, chunk: str) -> None:
        """Run the chunk a message named, or the next best, and go on for a while with what else the queue holds."""
        deadline = time.monotonic() + ADOPT_S
        while True:
            chunks = self._put_by.pop() if self._put_by else self._take(chunk)
            if not chunks and not patiently(lambda: self._dispatcher.fill(self._pool)):
                return
            if chunks:
                pools = self._run_safely(chunks)
                patiently(lambda pools=pools: self._dispatcher.fill(self._pool, *pools))  # type: ignore[misc]
            if time.monotonic() > deadline and not self._put_by:  # what was taken is run, whoever waits
                patiently(lambda: self._dispatcher.pass_on(self._queue))
                return

    def _take(self, chunk: str = "") -> list[Chunk]:
        take = partial(self._ledger.take, self._queue, chunk, self.incarnation, self._worker, uuid4().hex)
        return patiently(take)

    def _run_safely(self, chunks: list[Chunk]) -> set[str]:
        """Run them, and whatever goes wrong on the way is their items' outcome: a chunk must not stay with a live
        worker that has forgotten it."""
        try:
            with bound({chunk.job for chunk in chunks}):
                return self._move_parts(chunks) if chunks[0].stage == PARTS else self._run_chunks(chunks)
        except Exception as error:
            log.exception("chunks %s failed outside their engine", ", ".join(chunk.id for chunk in chunks))
            kind = "payload_lost" if isinstance(error, StoredFileMissing) else "internal_error"
            failure = Result(error=ItemError(kind, f"{type(error).__name__}: {error}"))
        if chunks[0].stage == PARTS:  # then these outcomes stay in Redis
            for chunk in chunks:
                for part in chunk.items:
                    patiently(partial(self._ledger.move, chunk, part, "", part == chunk.items[-1]))
            return set()
        return {pool for chunk in chunks for pool in self._fail(chunk, chunk.items, failure, over=True)}

    def _fail(self, chunk: Chunk, indices: Sequence[int], failure: Result, over: bool) -> set[str]:
        """Settle items that cannot even be begun. Returns the pools that may get work from it."""
        if over and failure.error:
            self._trace.end(chunk.id, failure.error.type)
        rows = patiently(partial(self._store.stages, chunk.job))
        stages = [Stage(row["name"], row["pool"], row["grouped"]) for row in rows]
        onward = replace(failure, next=group_stage_after(stages, chunk.stage))
        settled = [settle(index, {}, onward, 1, 0.0, self._worker) for index in indices]
        patiently(partial(self._ledger.commit, chunk, self._worker, 0.0, settled, over=over))
        return {stage.pool for stage in stages}

    def _run_chunks(self, chunks: list[Chunk]) -> set[str]:
        """Run chunks that share a batch key. Returns the pools that got new work from it."""
        known, entries = self._load(chunks)
        chunks = [chunk for chunk in chunks if chunk.job in known]
        if not chunks:
            return set()
        stored = {"cpu"} if any(is_stored(chunk.layout) for chunk in chunks) else set()
        if any(as_loop(chunk.layout) for chunk in chunks):  # what was committed may have begun further prompts
            stored.add("device")
        about = known[chunks[0].job]
        stage = about.stages[chunks[0].stage]
        if stage.streams:
            return self._run_stream(chunks, entries, about, stage) | stored
        is_whole = stage.grouped or stage.asks  # a group is never divided; calls have limits of their own
        size = max(1, len(entries) if is_whole else stage.batch_items)
        onward: set[str] = set()
        for start in range(0, max(1, len(entries)), size):
            batch = entries[start : start + size]
            later = {entry.chunk.id for entry in entries[start + size :]}
            ending = [chunk for chunk in chunks if chunk.id not in later]
            chunks = [chunk for chunk in chunks if chunk.id in later]
            reached = self._batches.run(self.incarnation, batch, ending)
            onward |= {about.stages[name].pool for name in reached}
        return onward | stored

    def _run_stream(self, chunks: list[Chunk], entries: list[Entry], about: Known, stage: Stage) -> set[str]:
        """Run chunks on an engine that takes more of the same sort while it runs."""
        jobs = {chunk.job for chunk in chunks}

        def take() -> tuple[list[Chunk], list[Entry]]:
            if chunks[0].alone or self._put_by:
                return [], []
            taken = self._take() or (self._take() if patiently(lambda: self._dispatcher.fill(self._pool)) else [])
            if not taken or taken[0].alone or taken[0].stage != stage.name:
                self._put_by += [taken] if taken else []  # next, when the engine has come to an end with these
                return [], []
            try:
                known, more = self._load(taken)
            except StoredFileMissing:  # said where chunks fail as a whole
                self._put_by.append(taken)
                return [], []
            if any(each.sort != about.sort for each in known.values()):
                self._put_by.append(taken)
                return [], []
            jobs.update(known)
            return [chunk for chunk in taken if chunk.job in known], more

        def pass_on(stages: set[str]) -> None:
            patiently(lambda: self._dispatcher.fill(*{about.stages[name].pool for name in stages}))

        with bound(jobs):  # which grow while it runs
            reached = self._batches.run_stream(self.incarnation, chunks, entries, take, jobs, pass_on)
        return {about.stages[name].pool for name in reached}

    def _move_parts(self, chunks: Sequence[Chunk]) -> set[str]:
        """Outcomes of stored jobs go from Redis to the storage. Returns the pools where that made room."""
        pools: set[str] = set()
        for chunk in chunks:
            job = patiently(partial(self._store.job, chunk.job))
            for part in chunk.items:
                items = [(chunk.id, [(part, "")])]
                patiently(partial(self._ledger.begin, self.incarnation, chunk.token, MOVE_TIMEOUT_S, items))
                over = part == chunk.items[-1]
                patiently(partial(self._outcomes.move, self._ledger, job, chunk, part, over))
            pools.update(each["pool"] for each in patiently(partial(self._store.stages, chunk.job)))
        return pools

    def _load(self, chunks: Sequence[Chunk]) -> tuple[dict[str, Known], list[Entry]]:
        """What is known of the chunks' jobs, as far as they are still there, and their items with their payloads."""
        if len(self._known) > MOST_KNOWN:
            self._known = {}
        remembered = self._known  # another thread may begin a new one
        known = {chunk.job: remembered[chunk.job] for chunk in chunks if chunk.job in remembered}
        unknown = list(dict.fromkeys(chunk.job for chunk in chunks if chunk.job not in known))
        loaded, recipes = patiently(
            lambda: self._payloads.read_work([Wanted(each.job, each.layout, each.items) for each in chunks], unknown)
        )
        for job, recipe in recipes.items():
            kind = self._kinds[recipe.kind]
            spec = kind.spec_model.model_validate(recipe.spec)
            stages = {stage.name: stage for stage in kind.stages(spec)}
            known[job] = self._known[job] = Known(recipe, kind, spec, stages)
        entries = []
        for chunk, work in zip(chunks, loaded, strict=True):
            if chunk.job not in known:  # expired between dispatch and now
                patiently(partial(self._ledger.commit, chunk, self._worker, 0, (), over=True))
                continue
            about = known[chunk.job]
            kind, stage = about.kind, about.stages[chunk.stage]
            if lost := [index for index in chunk.items if index not in work]:
                failure = Result(error=ItemError("payload_lost", "What was asked for this item is not there any more."))
                self._fail(chunk, lost, failure, over=False)
            for index, (payload, carry, attempts) in work.items():
                item = kind.item_model.model_validate(payload)
                trial = index % trials_of(chunk.layout)
                own = kind.key(about.spec, stage.name, item) if about.recipe.cache != "off" else None
                key = key_of(own, trial) if own is not None else None
                request = request_hash(answers_of(kind, stage), stage.name, key) if key is not None else ""
                work_item = Work(index, item, carry, attempts, about.spec, trial)
                entries.append(Entry(chunk, payload, work_item, request, key, about))
        return known, entries
