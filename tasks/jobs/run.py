"""Running chunks in a worker: take, claim, look up, compute, commit; and taking more while there is more.

Nothing here blocks on another worker. What another chunk computes is parked with its claim and comes back later.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError

from tasks.errors import AssayError, Retryable, StorageUnavailable, StoredFileMissing
from tasks.jobs.cache import Answer, Cache, request_hash
from tasks.jobs.dispatch import Dispatcher
from tasks.jobs.kinds import Context, Kind, Kinds, Work
from tasks.jobs.ledger import PARTS, Chunk, Ledger, Settled
from tasks.jobs.model import ACTIVE, ItemError, Result, Stage
from tasks.jobs.outcome import checked, retry_later, settle
from tasks.jobs.outcomes import Outcomes
from tasks.jobs.payloads import Payloads, Recipe, Wanted
from tasks.jobs.storage import folder_name, is_stored
from tasks.jobs.store import Store
from tasks.jobs.values import Values, split

log = logging.getLogger(__name__)

T = TypeVar("T")
Known = tuple[Recipe, Kind[Any, Any], Any]

#: Seconds a task goes on taking chunks before it makes room, so that a worker told to stop soon does.
ADOPT_S = 2.0
#: Times an item is tried when its failure may pass, and the first pause between; the pause doubles.
MOST_ATTEMPTS = 3
FIRST_RETRY_S = 0.5
#: Seconds between two looks at whether a running batch's jobs are over.
CANCEL_LOOK_S = 0.25
#: What Redis answers when it is there but cannot do it now.
PASSING = ("MISCONF", "LOADING", "OOM", "READONLY", "BUSY ", "NOSCRIPT", "MASTERDOWN")
#: Bytes of outcomes in one commit, about.
COMMIT_BYTES = 512 * 1024
#: Items in one commit: 500 take Redis up to 13 ms on a slow machine.
COMMIT_ITEMS = 200
#: Seconds it may take to move one part.
MOVE_TIMEOUT_S = 300.0
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
    key: Mapping[str, Any] | None
    recipe: Recipe


class Runner:
    def __init__(
        self, ledger: Ledger, store: Store, payloads: Payloads, outcomes: Outcomes, values: Values, cache: Cache,
        kinds: Kinds, dispatcher: Dispatcher, worker: str, incarnation: str, queue: str, pool: str,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._store = store
        self._payloads = payloads
        self._outcomes = outcomes
        self._values = values
        self._cache = cache
        self._kinds = kinds
        self._dispatcher = dispatcher
        self._worker = worker
        self._incarnation = incarnation
        self._queue = queue
        self._pool = pool
        self._known: dict[str, Known] = {}

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
            if not chunks and not patiently(lambda: self._dispatcher.fill(self._pool)):
                return
            if chunks:
                pools = self._run_safely(chunks)
                patiently(lambda pools=pools: self._dispatcher.fill(self._pool, *pools))  # type: ignore[misc]
            if time.monotonic() > deadline:
                patiently(lambda: self._dispatcher.pass_on(self._queue))
                return

    def _run_safely(self, chunks: list[Chunk]) -> set[str]:
        """Run them, and whatever goes wrong on the way is their items' outcome: a chunk must not stay with a live
        worker that has forgotten it."""
        try:
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
        known = self._known.get(chunks[0].job)
        stages = list(known[1].stages(known[2])) if known else []
        for chunk in chunks:
            onward = replace(failure, next=_group_stage_after(stages, chunk.stage))
            settled = [settle(index, {}, onward, 1, 0.0, self._worker) for index in chunk.items]
            patiently(partial(self._ledger.commit, chunk, self._worker, 0.0, settled, over=True))
        return {stage.pool for stage in stages}

    def _run_chunks(self, chunks: list[Chunk]) -> set[str]:
        """Run chunks that share a batch key. Returns the pools that got new work from it."""
        known, entries = self._load(chunks)
        gone = [chunk for chunk in chunks if chunk.job not in known]  # expired between dispatch and now
        for chunk in gone:
            patiently(lambda chunk=chunk: self._ledger.commit(chunk, self._worker, 0, (), over=True))  # type: ignore[misc]
        chunks = [chunk for chunk in chunks if chunk.job in known]
        if not chunks:
            return set()
        stored = any(is_stored(chunk.layout) for chunk in chunks)
        _, kind, spec = known[chunks[0].job]
        stages = list(kind.stages(spec))
        pools = {stage.name: stage.pool for stage in stages}
        is_grouped = any(stage.grouped and stage.name == chunks[0].stage for stage in stages)
        size = max(1, len(entries) if is_grouped else kind.batch_items(spec))  # a group is never divided
        onward: set[str] = set()
        for start in range(0, max(1, len(entries)), size):
            batch = entries[start : start + size]
            later = {entry.chunk.id for entry in entries[start + size :]}
            ending = [chunk for chunk in chunks if chunk.id not in later]
            chunks = [chunk for chunk in chunks if chunk.id in later]
            settled = self._run_batch(kind, spec, batch, ending)
            onward |= {pools[each.next] for each in settled if each.next in pools}
        return onward | ({"cpu"} if stored else set())

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
        """What is known of the chunks' jobs, and their items with their payloads."""
        if len(self._known) > MOST_KNOWN:
            self._known = {}
        known = {chunk.job: self._known[chunk.job] for chunk in chunks if chunk.job in self._known}
        unknown = list(dict.fromkeys(chunk.job for chunk in chunks if chunk.job not in known))
        loaded, recipes = patiently(
            lambda: self._payloads.read_work([Wanted(each.job, each.layout, each.items) for each in chunks], unknown)
        )
        for job, recipe in recipes.items():
            kind = self._kinds[recipe.kind]
            known[job] = self._known[job] = recipe, kind, kind.spec_model.model_validate(recipe.spec)
        entries = []
        for chunk, work in zip(chunks, loaded, strict=True):
            if chunk.job not in known:
                continue
            recipe, kind, spec = known[chunk.job]
            for index, (payload, carry, attempts) in work.items():
                item = kind.item_model.model_validate(payload)
                key = kind.key(spec, chunk.stage, item) if recipe.cache != "off" else None
                request = request_hash(kind.name, chunk.stage, key) if key is not None else ""
                entries.append(Entry(chunk, payload, Work(index, item, carry, attempts), request, key, recipe))
        return known, entries

    def _run_batch(
        self, kind: Kind[Any, Any], spec: Any, batch: Sequence[Entry], ending: Sequence[Chunk]
    ) -> list[Settled]:
        """Claim, look up, compute and commit one engine batch; `ending` chunks are over with it."""
        run = self._begin(kind, spec, batch)
        found = self._look_up(kind, run)
        fresh: dict[str, Entry] = {}
        for entry in run:  # equal requests in one batch are computed once
            if entry.request not in found:
                fresh.setdefault(entry.request or f"{entry.chunk.id}:{entry.work.index}", entry)
        started = time.monotonic()
        results = self._compute(kind, spec, list(fresh.values()))
        seconds = time.monotonic() - started
        by_request = dict(zip(fresh, results, strict=True))
        self._keep(kind, spec, fresh, by_request)
        latency_ms = 1000 * seconds / max(1, len(fresh))
        stages = list(kind.stages(spec))
        settled: dict[str, list[Settled]] = {}
        for entry in run:
            name = entry.request or f"{entry.chunk.id}:{entry.work.index}"
            hit = found.get(entry.request)
            settled.setdefault(entry.chunk.id, []).append(
                self._settle(
                    entry,
                    self._directed(kind, spec, stages, entry, hit or by_request[name]),
                    0.0 if hit else latency_ms,
                )
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
                min([kind.timeout_s(spec), *filter(None, (entry.recipe.item_deadline_s for entry in ordered))]),
                [(chunk, [(e.work.index, e.request) for e in entries]) for chunk, entries in grouped.items()],
            )
        )
        return [entry for entry, verdict in zip(ordered, verdicts, strict=True) if verdict == "r"]

    def _look_up(self, kind: Kind[Any, Any], entries: Sequence[Entry]) -> dict[str, Result]:
        """Once more after winning the claims: their last owner may have stored the answer just before."""
        asked = dict.fromkeys(entry.request for entry in entries if entry.request and entry.recipe.cache == "use")
        return self._cache.get(kind.name, list(asked)) if asked else {}

    def _keep(self, kind: Kind[Any, Any], spec: Any, fresh: Mapping[str, Entry], results: Mapping[str, Result]) -> None:
        answers = {
            entry.request: Answer(
                results[name], entry.chunk.stage, entry.key, str(entry.payload.get("id") or ""), kind.labels(spec)
            )
            for name, entry in fresh.items()
            if entry.key is not None and results[name].error is None
        }
        if answers:
            self._cache.put(kind.name, answers)

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
                return [checked(result) for result in results]
            failure = ItemError("internal_error", f"{kind.name} gave {len(results)} results for {len(entries)} items.")
        return [Result(error=failure)] * len(entries)

    def _directed(
        self, kind: Kind[Any, Any], spec: Any, stages: Sequence[Stage], entry: Entry, result: Result
    ) -> Result:
        """The result with where its item goes: a failed one goes on to its group, which must not wait for it."""
        stage = entry.chunk.stage
        if result.error is None:
            return replace(result, next=kind.onward(spec, stage, result))
        can_retry = not any(
            each.grouped and each.name == stage for each in stages
        )  # a group is retried whole or not at all
        error = replace(result.error, retryable=result.error.retryable and can_retry)
        return replace(result, error=error, next=_group_stage_after(stages, stage))

    def _settle(self, entry: Entry, result: Result, latency_ms: float) -> Settled:
        attempts = entry.work.attempts + 1
        fill = entry.recipe.fill
        settled = settle(entry.work.index, entry.payload, result, attempts, latency_ms, self._worker, fill)
        if result.error and result.error.retryable and attempts < MOST_ATTEMPTS:
            return retry_later(settled, FIRST_RETRY_S * 2 ** (attempts - 1), attempts)
        return settled

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

        short = {
            name: patiently(
                partial(self._values.shortened, folder_name(chunks[name].job, chunks[name].layout), results)
            )
            for name, results in settled.items()
        }

        def commit() -> None:
            pipeline = self._ledger.state.pipeline(transaction=False)
            for name, chunk in chunks.items():
                released = [entry.request for entry in run if entry.chunk.id == name and entry.request]
                *first, last = split(short.get(name, []), COMMIT_BYTES, COMMIT_ITEMS)
                for page in first:
                    self._ledger.commit(chunk, self._worker, seconds_each * len(page), page, client=pipeline)
                self._ledger.commit(
                    chunk, self._worker, seconds_each * len(last), last, released, name in over, pipeline
                )
            pipeline.execute()

        patiently(commit)

    def _cancel_check(self, jobs: set[str]) -> Callable[[], bool]:
        looked_at, answer = time.monotonic(), False

        def is_cancelled() -> bool:
            nonlocal looked_at, answer
            if not answer and time.monotonic() - looked_at > CANCEL_LOOK_S:
                looked_at = time.monotonic()
                try:
                    answer = not any(state in ACTIVE for state in self._store.states(sorted(jobs)))
                except RedisError as error:  # the batch goes on; its commit will wait
                    log.debug("cannot tell whether the work is still wanted: %s", error)
            return answer

        return is_cancelled


def _group_stage_after(stages: Sequence[Stage], stage: str) -> str:
    """The grouped stage that an item of this stage is still to reach; empty when there is none."""
    names = [each.name for each in stages]
    later = stages[names.index(stage) + 1 :] if stage in names else ()
    return next((each.name for each in later if each.grouped), "")


def patiently(call: Callable[[], T]) -> T:
    """The call's answer, however long Redis or the storage is away. Every call made so may be repeated."""
    told = False
    while True:
        try:
            return call()
        except (ConnectionError, TimeoutError, StorageUnavailable) as error:
            reason: Exception = error
        except ResponseError as error:  # inside a script it comes with a prefix
            if not any(word in str(error) for word in PASSING):
                raise
            reason = error
        if not told:
            log.warning("this worker waits: %s", reason)
            told = True
        time.sleep(REDIS_RETRY_S)
