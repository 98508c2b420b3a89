"""Running chunks in a worker: take, claim, look up, compute, commit; and taking more while there is more.

Nothing here blocks on another worker. What another chunk computes is parked with its claim and comes back later.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import uuid4

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from tasks.errors import AssayError, Retryable
from tasks.jobs.cache import Cache, request_hash
from tasks.jobs.dispatch import Dispatcher
from tasks.jobs.kinds import Context, Kind, Kinds, Work
from tasks.jobs.ledger import Chunk, Ledger, Settled
from tasks.jobs.model import ACTIVE, ItemError, Result
from tasks.jobs.outcome import retry_later, settle
from tasks.jobs.store import Recipe, Store

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds a task goes on taking chunks before it makes room, so that a worker told to stop soon does.
ADOPT_S = 2.0
#: Times an item is tried when its failure may pass, and the first pause between; the pause doubles.
MOST_ATTEMPTS = 3
FIRST_RETRY_S = 0.5
#: Seconds between two looks at whether a running batch's jobs are over.
CANCEL_LOOK_S = 0.25
#: Jobs whose spec a process remembers.
MOST_KNOWN = 1000
#: Seconds between two tries while Redis is away.
REDIS_RETRY_S = 0.5


@dataclass(slots=True)
class Entry:
    """One item of the chunks at hand."""

    chunk: Chunk
    payload: dict[str, Any]
    work: Work[Any]
    request: str
    """Hash of what determines the answer; empty when it is not cached."""


class Runner:
    def __init__(
        self, ledger: Ledger, store: Store, cache: Cache, kinds: Kinds, dispatcher: Dispatcher, worker: str,
        incarnation: str, queue: str, pool: str,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._store = store
        self._cache = cache
        self._kinds = kinds
        self._dispatcher = dispatcher
        self._worker = worker
        self._incarnation = incarnation
        self._queue = queue
        self._pool = pool
        self._known: dict[str, tuple[Recipe, Kind[Any, Any], Any]] = {}

    @property
    def incarnation(self) -> str:
        """This process: a prefork child is not its parent."""
        return f"{self._incarnation}/{os.getpid()}"

    def run(self, chunk: str) -> None:
        """Run the chunk a message named, or the next best, and go on for a while with what else the queue holds."""
        deadline = time.monotonic() + ADOPT_S
        while True:
            token = uuid4().hex
            chunks = patiently(
                lambda token=token: self._ledger.take(self._queue, chunk, self.incarnation, self._worker, token)  # type: ignore[misc]
            )
            if not chunks and not self._dispatcher.fill(self._pool):
                return
            if chunks:
                pools = self._run_chunks(chunks)
                patiently(lambda pools=pools: self._dispatcher.fill(self._pool, *pools))  # type: ignore[misc]
            if time.monotonic() > deadline:
                patiently(lambda: self._dispatcher.pass_on(self._queue))
                return

    def _run_chunks(self, chunks: list[Chunk]) -> set[str]:
        """Run chunks that share a batch key. Returns the pools that got new work from it."""
        entries = self._load(chunks)
        if chunks[0].job not in self._known:  # expired between dispatch and now
            for chunk in chunks:
                patiently(lambda chunk=chunk: self._ledger.commit(chunk, self._worker, 0, (), over=True))  # type: ignore[misc]
            return set()
        _, kind, spec = self._known[chunks[0].job]
        stages = {stage.name: stage.pool for stage in kind.stages(spec)}
        size = max(1, kind.batch_items(spec))
        onward: set[str] = set()
        for start in range(0, max(1, len(entries)), size):
            batch = entries[start : start + size]
            later = {entry.chunk.id for entry in entries[start + size :]}
            ending = [chunk for chunk in chunks if chunk.id not in later]
            chunks = [chunk for chunk in chunks if chunk.id in later]
            settled = self._run_batch(kind, spec, batch, ending)
            onward |= {stages[each.next] for each in settled if each.next in stages}
        return onward

    def _load(self, chunks: Sequence[Chunk]) -> list[Entry]:
        """The items of the chunks, with their payloads."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        unknown = list(dict.fromkeys(chunk.job for chunk in chunks if chunk.job not in self._known))
        loaded, recipes = patiently(
            lambda: self._store.read_work([(chunk.job, chunk.items) for chunk in chunks], unknown)
        )
        for job, recipe in recipes.items():
            kind = self._kinds[recipe.kind]
            self._known[job] = recipe, kind, kind.spec_model.model_validate(recipe.spec)
        entries = []
        for chunk, work in zip(chunks, loaded, strict=True):
            if chunk.job not in self._known:
                continue
            recipe, kind, spec = self._known[chunk.job]
            for index, (payload, carry, attempts) in work.items():
                item = kind.item_model.model_validate(payload)
                key = kind.key(spec, chunk.stage, item) if recipe.cache != "off" else None
                request = request_hash(kind.name, chunk.stage, key) if key is not None else ""
                entries.append(Entry(chunk, payload, Work(index, item, carry, attempts), request))
        return entries

    def _run_batch(
        self, kind: Kind[Any, Any], spec: Any, batch: Sequence[Entry], ending: Sequence[Chunk]
    ) -> list[Settled]:
        """Claim, look up, compute and commit one engine batch; `ending` chunks are over with it."""
        run = self._begin(kind, spec, batch)
        found = self._look_up(run)
        fresh: dict[str, Entry] = {}
        for entry in run:  # equal requests in one batch are computed once
            if entry.request not in found:
                fresh.setdefault(entry.request or f"{entry.chunk.id}:{entry.work.index}", entry)
        started = time.monotonic()
        results = self._compute(kind, spec, list(fresh.values()))
        seconds = time.monotonic() - started
        by_request = dict(zip(fresh, results, strict=True))
        self._cache.put(
            {entry.request: by_request[name] for name, entry in fresh.items()
             if entry.request and by_request[name].error is None}
        )  # fmt: skip
        latency_ms = 1000 * seconds / max(1, len(fresh))
        group_stage = next((stage.name for stage in kind.stages(spec) if stage.grouped), "")
        settled: dict[str, list[Settled]] = {}
        for entry in run:
            name = entry.request or f"{entry.chunk.id}:{entry.work.index}"
            hit = found.get(entry.request)
            settled.setdefault(entry.chunk.id, []).append(
                self._settle(entry, hit or by_request[name], 0.0 if hit else latency_ms, group_stage)
            )
        self._commit(batch, ending, settled, seconds / max(1, len(fresh)), run)
        return [each for group in settled.values() for each in group]

    def _begin(self, kind: Kind[Any, Any], spec: Any, batch: Sequence[Entry]) -> list[Entry]:
        grouped: dict[str, list[Entry]] = {}
        for entry in batch:
            grouped.setdefault(entry.chunk.id, []).append(entry)
        ordered = [entry for entries in grouped.values() for entry in entries]
        if not ordered:
            return []
        verdicts = patiently(
            lambda: self._ledger.begin(
                self.incarnation,
                ordered[0].chunk.token,
                kind.timeout_s(spec),
                [(chunk, [(e.work.index, e.request) for e in entries]) for chunk, entries in grouped.items()],
            )
        )
        return [entry for entry, verdict in zip(ordered, verdicts, strict=True) if verdict == "r"]

    def _look_up(self, entries: Sequence[Entry]) -> dict[str, Result]:
        """Once more after winning the claims: their last owner may have stored the answer just before."""
        asked = dict.fromkeys(
            entry.request for entry in entries if entry.request and self._known[entry.chunk.job][0].cache == "use"
        )
        return self._cache.get(list(asked)) if asked else {}

    def _compute(self, kind: Kind[Any, Any], spec: Any, entries: Sequence[Entry]) -> Sequence[Result]:
        if not entries:
            return []
        context = Context(entries[0].chunk.stage, self._worker, self._cancel_check({e.chunk.job for e in entries}))
        try:
            results = kind.run(context, spec, [entry.work for entry in entries])
        except AssayError as error:
            failure = ItemError(type(error).__name__, str(error), isinstance(error, Retryable))
        except Exception as error:  # a kind's own bug is its items' outcome, with its reason, not our end
            log.exception("%s failed on a batch of %d", kind.name, len(entries))
            failure = ItemError("internal_error", f"{type(error).__name__}: {error}")
        else:
            if len(results) == len(entries):
                return results
            failure = ItemError("internal_error", f"{kind.name} gave {len(results)} results for {len(entries)} items.")
        return [Result(error=failure)] * len(entries)

    def _settle(self, entry: Entry, result: Result, latency_ms: float, group_stage: str) -> Settled:
        attempts = entry.work.attempts + 1
        if result.error and result.error.retryable and attempts < MOST_ATTEMPTS:
            return retry_later(entry.work.index, FIRST_RETRY_S * 2 ** (attempts - 1))
        if result.error and group_stage != entry.chunk.stage:
            result = replace(result, next=group_stage)  # its group must not wait for it
        return settle(entry.work.index, entry.payload, result, attempts, latency_ms, self._worker)

    def _commit(
        self,
        batch: Sequence[Entry],
        ending: Sequence[Chunk],
        settled: dict[str, list[Settled]],
        seconds_each: float,
        run: Sequence[Entry],
    ) -> None:
        """All chunks of a batch in one round trip. May be repeated after a lost reply: counting is idempotent."""
        chunks = {entry.chunk.id: entry.chunk for entry in batch} | {chunk.id: chunk for chunk in ending}
        over = {chunk.id for chunk in ending}

        def commit() -> None:
            pipeline = self._ledger.state.pipeline(transaction=False)
            for name, chunk in chunks.items():
                results = settled.get(name, [])
                released = [entry.request for entry in run if entry.chunk.id == name and entry.request]
                self._ledger.commit(
                    chunk, self._worker, seconds_each * len(results), results, released, name in over, pipeline
                )
            pipeline.execute()

        patiently(commit)

    def _cancel_check(self, jobs: set[str]) -> Callable[[], bool]:
        looked_at, answer = time.monotonic(), False

        def is_cancelled() -> bool:
            nonlocal looked_at, answer
            if not answer and time.monotonic() - looked_at > CANCEL_LOOK_S:
                looked_at = time.monotonic()
                answer = not any(state in ACTIVE for state in self._store.states(sorted(jobs)))
            return answer

        return is_cancelled


def patiently(call: Callable[[], T]) -> T:
    """The call's answer, however long Redis is away. Every call made so may be repeated."""
    told = False
    while True:
        try:
            return call()
        except (ConnectionError, TimeoutError) as error:
            reason: Exception = error
        except ResponseError as error:
            if not str(error).startswith(("MISCONF", "LOADING")):
                raise
            reason = error
        if not told:
            log.warning("Redis is away, this worker waits: %s", reason)
            told = True
        time.sleep(REDIS_RETRY_S)
