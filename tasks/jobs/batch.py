"""One engine batch: claim, look up, compute, commit. Results of a kind that asks an API are committed as they come."""

import logging
import re
import time
from asyncio import CancelledError, timeout
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from tasks.errors import ApiTimeout, AssayError, Retryable
from tasks.jobs.cache import Answer, Cache, request_hash
from tasks.jobs.kinds import AsyncKind, Context, EngineKind, Kind, Work
from tasks.jobs.ledger import Chunk, Ledger, Settled
from tasks.jobs.model import ACTIVE, ItemError, Result, Stage
from tasks.jobs.outcome import checked, retry_later, settle
from tasks.jobs.patience import patiently
from tasks.jobs.payloads import Recipe
from tasks.jobs.storage import folder_name
from tasks.jobs.store import Store
from tasks.jobs.values import Values, split
from tasks.runtime import Calls

log = logging.getLogger(__name__)

#: Times an item is tried when its failure may pass, and the first pause between; the pause doubles.
MOST_ATTEMPTS = 3
FIRST_RETRY_S = 0.5
#: Seconds between two looks at whether a running batch's jobs are over.
CANCEL_LOOK_S = 0.25
#: Bytes of outcomes in one commit, about.
COMMIT_BYTES = 512 * 1024
#: Items in one commit: 500 take Redis up to 13 ms on a slow machine.
COMMIT_ITEMS = 200


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

    @property
    def name(self) -> str:
        """Equal for items of a batch that are computed once."""
        return self.request or f"{self.chunk.id}:{self.work.index}"


@dataclass(frozen=True, slots=True)
class Computed:
    result: Result
    seconds: float


class BatchRunner:
    def __init__(
        self, ledger: Ledger, store: Store, cache: Cache, values: Values, calls: Calls | None, worker: str
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._cache = cache
        self._values = values
        self._calls = calls
        self._worker = worker

    def run(
        self, incarnation: str, kind: Kind[Any, Any], spec: Any, batch: Sequence[Entry], ending: Sequence[Chunk]
    ) -> set[str]:
        """Run one batch; `ending` chunks are over with it. Returns the stages that items went on to."""
        stages = list(kind.stages(spec))
        chunks = {entry.chunk.id: entry.chunk for entry in batch} | {chunk.id: chunk for chunk in ending}
        run = self._begin(incarnation, kind, spec, batch)
        found = self._look_up(kind, run)
        hits = [entry for entry in run if entry.request in found]
        shared: dict[str, list[Entry]] = {}
        for entry in run:  # equal requests in one batch are computed once
            if entry.request not in found:
                shared.setdefault(entry.name, []).append(entry)
        onward: set[str] = set()
        left, at = len(shared), time.monotonic()
        for page in self._computed(kind, spec, {name: entries[0] for name, entries in shared.items()}):
            left -= len(page)
            now = time.monotonic()
            seconds_each, at = (now - at) / len(page) if page else 0.0, now  # what the cache had cost nothing
            self._keep(kind, spec, {name: (shared[name][0], each.result) for name, each in page.items()})
            pairs = [(entry, Computed(found[entry.request], 0.0)) for entry in hits]
            pairs += [(entry, each) for name, each in page.items() for entry in shared[name]]
            hits = []
            settled: dict[str, list[Settled]] = {}
            for entry, each in pairs:
                directed = self._directed(kind, spec, stages, entry, each.result)
                settled.setdefault(entry.chunk.id, []).append(self._settle(entry, directed, 1000 * each.seconds))
            over = {chunk.id for chunk in ending} if left == 0 else set()
            touched = {name: chunk for name, chunk in chunks.items() if name in settled or left == 0}
            self._commit(touched, over, settled, seconds_each, [entry for entry, _ in pairs])
            onward |= {each.next for group in settled.values() for each in group if each.next}
        return onward

    def _begin(self, incarnation: str, kind: Kind[Any, Any], spec: Any, batch: Sequence[Entry]) -> list[Entry]:
        grouped: dict[str, list[Entry]] = {}
        for entry in batch:
            grouped.setdefault(entry.chunk.id, []).append(entry)
        ordered = [entry for entries in grouped.values() for entry in entries]
        if not ordered:
            return []
        verdicts = patiently(
            lambda: self._ledger.begin(
                incarnation,
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

    def _keep(self, kind: Kind[Any, Any], spec: Any, page: Mapping[str, tuple[Entry, Result]]) -> None:
        answers: dict[str, Answer] = {}
        for entry, result in page.values():
            if entry.key is None or result.error is not None:
                continue
            request: str = entry.request
            key: Mapping[str, Any] | None = entry.key
            if isinstance(kind, AsyncKind):  # a fallback may have answered: then it is the answer to another request
                key = kind.stored_key(spec, entry.work.item, result)
                request = request_hash(kind.name, entry.chunk.stage, key) if key is not None else ""
            if key is not None:
                item = str(entry.payload.get("id") or "")
                answers[request] = Answer(result, entry.chunk.stage, key, item, kind.labels(spec))
        if answers:
            self._cache.put(kind.name, answers)

    # --- computing ---

    def _computed(
        self, kind: Kind[Any, Any], spec: Any, fresh: Mapping[str, Entry]
    ) -> Iterator[Mapping[str, Computed]]:
        """Results by name, at least one page of them; all names once."""
        names, entries = list(fresh), list(fresh.values())
        if not entries:
            yield {}
        elif isinstance(kind, AsyncKind):
            yield from self._asked(kind, spec, names, entries)
        else:
            assert isinstance(kind, EngineKind), "a kind computes, or it asks"
            started = time.monotonic()
            results = self._run_engine(kind, spec, entries)
            seconds = (time.monotonic() - started) / len(entries)
            yield {name: Computed(result, seconds) for name, result in zip(names, results, strict=True)}

    def _asked(
        self, kind: AsyncKind[Any, Any], spec: Any, names: Sequence[str], entries: Sequence[Entry]
    ) -> Iterator[Mapping[str, Computed]]:
        calls = self._calls
        if calls is None:
            failure = Result(error=ItemError("no_api_calls", f"This worker cannot run {kind.name} jobs."))
            yield {name: Computed(failure, 0.0) for name in names}
            return
        work: list[Coroutine[Any, Any, Result]] = [
            _within(
                entry.recipe.item_deadline_s,
                kind.run_one(calls.ask, spec, entry.work, entry.recipe.id, entry.recipe.priority),
            )
            for entry in entries
        ]
        is_cancelled = self._cancel_check({entry.chunk.job for entry in entries})
        yield {}  # what the cache had need not wait for the first reply
        for page in calls.run_each(work, is_cancelled):
            yield {names[index]: Computed(_as_result(outcome), seconds) for index, outcome, seconds in page}

    def _run_engine(self, kind: EngineKind[Any, Any], spec: Any, entries: Sequence[Entry]) -> Sequence[Result]:
        context = Context(entries[0].chunk.stage, self._worker, self._cancel_check({e.chunk.job for e in entries}))
        try:
            results = kind.run(context, spec, [entry.work for entry in entries])
        except Exception as error:  # noqa: BLE001  # a kind's own bug is its items' outcome, not our end
            return [_as_result(error)] * len(entries)
        if len(results) != len(entries):
            message = f"{kind.name} gave {len(results)} results for {len(entries)} items."
            return [Result(error=ItemError("internal_error", message))] * len(entries)
        return [checked(result) for result in results]

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

    # --- settling ---

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
        return replace(result, error=error, next=group_stage_after(stages, stage))

    def _settle(self, entry: Entry, result: Result, latency_ms: float) -> Settled:
        attempts = entry.work.attempts + 1
        fill = entry.recipe.fill
        settled = settle(entry.work.index, entry.payload, result, attempts, latency_ms, self._worker, fill)
        if result.error and result.error.retryable and attempts < MOST_ATTEMPTS:
            return retry_later(settled, FIRST_RETRY_S * 2 ** (attempts - 1), attempts)
        return settled

    def _commit(
        self,
        chunks: Mapping[str, Chunk],
        over: set[str],
        settled: Mapping[str, list[Settled]],
        seconds_each: float,
        entries: Sequence[Entry],
    ) -> None:
        """All chunks in one round trip. May be repeated after a lost reply: counting is idempotent."""
        short = {
            name: patiently(
                partial(self._values.shortened, folder_name(chunks[name].job, chunks[name].layout), results)
            )
            for name, results in settled.items()
        }

        def commit() -> None:
            pipeline = self._ledger.state.pipeline(transaction=False)
            for name, chunk in chunks.items():
                released = [entry.request for entry in entries if entry.chunk.id == name and entry.request]
                *first, last = split(short.get(name, []), COMMIT_BYTES, COMMIT_ITEMS)
                for page in first:
                    self._ledger.commit(chunk, self._worker, seconds_each * len(page), page, client=pipeline)
                self._ledger.commit(
                    chunk, self._worker, seconds_each * len(last), last, released, name in over, pipeline
                )
            pipeline.execute()

        patiently(commit)


async def _within(seconds: float | None, work: Coroutine[Any, Any, Result]) -> Result:
    """The result, or that the item's own deadline passed."""
    try:
        async with timeout(seconds):
            return await work
    except TimeoutError:
        failure = ItemError("timed_out", f"Not done within the {seconds} s that one item may take.")
        return Result(error=failure, timed_out=True)


def _as_result(error: Result | BaseException) -> Result:
    """What went wrong as the outcome of an item: our own errors by their name, anything else as a bug."""
    if isinstance(error, Result):
        return checked(error)
    if isinstance(error, CancelledError):
        return Result(error=ItemError("cancelled", "The job was over before this item was done."))
    if isinstance(error, AssayError):
        name = str(getattr(error, "reason", "") or re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower())
        failure = ItemError(name, str(error), isinstance(error, Retryable))
        return Result(error=failure, timed_out=isinstance(error, ApiTimeout))
    log.error("a batch failed", exc_info=error)
    return Result(error=ItemError("internal_error", f"{type(error).__name__}: {error}"))


def group_stage_after(stages: Sequence[Stage], stage: str) -> str:
    """The grouped stage that an item of this stage is still to reach; empty when there is none."""
    names = [each.name for each in stages]
    later = stages[names.index(stage) + 1 :] if stage in names else ()
    return next((each.name for each in later if each.grouped), "")
