"""One engine batch: claim, look up, compute, commit. Results of a kind that asks an API are committed as they come."""

import logging
import time
from asyncio import CancelledError, timeout
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from config.logging import bound
from tasks.apis.call import ApiCall, ApiReply, Ask
from tasks.benchmarks.model import Bench
from tasks.episodes.model import Episodes
from tasks.errors import ApiTimeout, AssayError, CannotAnswer, Permanent, PolicyUnavailable, Retryable
from tasks.inference.engine import Engine
from tasks.jobs.books import Books
from tasks.jobs.entry import Computed, Entry
from tasks.jobs.kinds import AsyncKind, Context, EngineKind, StreamKind
from tasks.jobs.ledger import Chunk
from tasks.jobs.model import ACTIVE, STOPPED, ItemError, Result
from tasks.jobs.outcome import checked
from tasks.jobs.store import Store
from tasks.jobs.stream import Feed, Take
from tasks.runtime import Means
from tasks.tracing import Span, inside

log = logging.getLogger(__name__)

#: Seconds between two looks at whether a running batch's jobs are over.
CANCEL_LOOK_S = 0.25


class BatchRunner:
    def __init__(self, books: Books, store: Store, means: Means, worker: str, fill: Callable[[], object]) -> None:
        self._books = books
        self._store = store
        self._means = means
        self._fill = fill
        self._worker = worker

    def run(self, incarnation: str, batch: Sequence[Entry], ending: Sequence[Chunk]) -> set[str]:
        """Run one batch, of one stage, with the first one's spec; `ending` chunks are over with it. Returns the stages
        that items went on to."""
        chunks = {entry.chunk.id: entry.chunk for entry in batch} | {chunk.id: chunk for chunk in ending}
        run = self._books.begin(incarnation, batch)
        found = self._books.look_up(run)
        hits = [entry for entry in run if entry.request in found]
        shared: dict[str, list[Entry]] = {}
        for entry in run:  # equal requests in one batch are computed once
            if entry.request not in found:
                shared.setdefault(entry.name, []).append(entry)
        onward: set[str] = set()
        left = Counter(entry.chunk.id for entries in shared.values() for entry in entries)
        at = time.monotonic()
        for page in self._computed({name: entries[0] for name, entries in shared.items()}):
            now = time.monotonic()
            seconds_each, at = (now - at) / len(page) if page else 0.0, now  # what the cache had cost nothing
            self._books.keep([(shared[name][0], each.result) for name, each in page.items()])
            pairs = [(entry, Computed(found[entry.request], 0.0)) for entry in hits]
            pairs += [(entry, each) for name, each in page.items() for entry in shared[name]]
            hits = []
            left -= Counter(entry.chunk.id for name in page for entry in shared[name])
            # A chunk ends with its own last item: a call that hangs does not hold those that were taken along with it.
            over = {chunk.id for chunk in ending if not left[chunk.id]}
            ending = [chunk for chunk in ending if chunk.id not in over]
            named = over | {entry.chunk.id for entry, _ in pairs}
            onward |= self._books.commit(pairs, {name: chunks[name] for name in named}, over, seconds_each)
            if left and (over or (page and batch[0].stage.most_out)):  # what came in makes room for others
                self._fill()
        return onward

    # --- computing ---

    def _computed(self, fresh: Mapping[str, Entry]) -> Iterator[Mapping[str, Computed]]:
        """Results by name, at least one page of them; all names once."""
        names, entries = list(fresh), list(fresh.values())
        if not entries:
            yield {}
        elif entries[0].stage.asks:
            yield from self._asked(names, entries)
        else:
            started = time.monotonic()
            results = self._run_engine(entries)
            seconds = (time.monotonic() - started) / len(entries)
            yield {name: Computed(result, seconds) for name, result in zip(names, results, strict=True)}

    def _asked(self, names: Sequence[str], entries: Sequence[Entry]) -> Iterator[Mapping[str, Computed]]:
        kind, spec = entries[0].about.kind, entries[0].about.spec
        assert isinstance(kind, AsyncKind)
        work: list[Coroutine[Any, Any, Result]] = [
            _within(
                entry,
                self._books.trace.of(entry.chunk.id),
                kind.run_one(_ask_for(self._means.ask, entry), spec, entry.work),
            )
            for entry in entries
        ]
        jobs = Counter(entry.chunk.job for entry in entries)  # that still wait for something
        yield {}  # what the cache had need not wait for the first reply
        for page in self._means.run_each(work, self._cancel_check(jobs)):
            jobs -= Counter(entries[index].chunk.job for index, _, _ in page)
            yield {names[index]: Computed(_as_result(outcome), seconds) for index, outcome, seconds in page}

    def _run_engine(self, entries: Sequence[Entry]) -> Sequence[Result]:
        kind, spec = entries[0].about.kind, entries[0].about.spec
        assert isinstance(kind, EngineKind)
        is_cancelled = self._cancel_check({entry.chunk.job for entry in entries})
        context = self._context(entries[0].chunk.stage, is_cancelled)
        try:
            results = kind.run(context, spec, [entry.work for entry in entries])
        except Exception as error:  # noqa: BLE001  # a kind's own bug is its items' outcome, not our end
            return [_as_result(error)] * len(entries)
        if len(results) != len(entries):
            message = f"{kind.name} gave {len(results)} results for {len(entries)} items."
            return [Result(error=ItemError("internal_error", message))] * len(entries)
        return [checked(result) for result in results]

    def run_stream(
        self, incarnation: str, chunks: Sequence[Chunk], entries: Sequence[Entry], take: Take, jobs: set[str],
        pass_on: Callable[[set[str]], None],
    ) -> set[str]:  # fmt: skip
        """Run chunks on an engine that takes more while it runs; `jobs` grows with what it takes. Whenever items went
        on to other stages, `pass_on` is told; those of the last commit are returned."""
        feed = Feed(self._books, incarnation, take, self._cancel_check(jobs), pass_on)
        context = self._context(chunks[0].stage, feed.is_cancelled)
        feed.add(chunks, entries)
        failure = Result(error=ItemError("internal_error", "The engine ended without an answer to this item."))
        try:
            if entries:
                kind = entries[0].about.kind
                assert isinstance(kind, StreamKind)
                kind.stream(context, feed)
        except Exception as error:  # noqa: BLE001  # a kind's own bug is its items' outcome, not our end
            failure = _as_result(error)
        feed.end(STOPPED if context.is_cancelled() else failure)
        return feed.onward

    def _context(self, stage: str, is_cancelled: Callable[[], bool]) -> Context:
        return Context(stage, self._worker, is_cancelled, self._engine, self._episodes, self._bench)

    def _bench(self) -> Bench:
        if (bench := self._means.bench) is None:
            raise Permanent(f"{self._worker} does not measure.")
        return bench

    def _engine(self) -> Engine:
        if (engine := self._means.engine) is None:
            raise CannotAnswer("no_engine", f"{self._worker} holds no models.")
        return engine

    def _episodes(self) -> Episodes:
        if (episodes := self._means.episodes) is None:
            raise PolicyUnavailable(f"{self._worker} has no policy server.")
        return episodes

    def _cancel_check(self, jobs: Collection[str]) -> Callable[[], bool]:
        """Whether all these jobs are over; which they are may change meanwhile."""
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


def _ask_for(ask: Ask, entry: Entry) -> Ask:
    """The same for calls of this item's job: they wait their turn, and are paid for, in its name."""
    recipe, item = entry.recipe, entry.work.index

    async def ask_for(call: ApiCall) -> ApiReply:
        return await ask(replace(call, job=recipe.id, item=item, priority=recipe.priority, token=recipe.token))

    return ask_for


async def _within(entry: Entry, span: Span, work: Coroutine[Any, Any, Result]) -> Result:
    """The result, or that the item's own deadline passed. Its calls are part of the span."""
    seconds = entry.recipe.item_deadline_s
    try:
        with bound((entry.chunk.job,)), inside(span):
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
        return STOPPED
    if isinstance(error, AssayError):
        failure = ItemError(error.name, str(error), isinstance(error, Retryable), getattr(error, "wait_s", 0.0))
        return Result(error=failure, timed_out=isinstance(error, ApiTimeout))
    log.error("a batch failed", exc_info=error)
    return Result(error=ItemError("internal_error", f"{type(error).__name__}: {error}"))
