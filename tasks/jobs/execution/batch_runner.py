"""Batch runner: claims, looks up, computes and commits the items of an engine batch.

Results of a stage that calls an API are committed as the replies arrive, not at the end of the batch.
"""

import logging
import time
from asyncio import CancelledError, timeout
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.trace import Span
from redis.exceptions import RedisError

from config.logging import job_context
from tasks.errors import AssayError
from tasks.jobs.execution.entry import Computed, Entry
from tasks.jobs.execution.recorder import Recorder
from tasks.jobs.execution.stream_feed import Feed, Take
from tasks.jobs.model import STOPPED, ItemError, Result
from tasks.jobs.stage import AskStage, BatchStage, Context, StreamStage
from tasks.jobs.state.job_store import JobStore
from tasks.jobs.state.ledger import Chunk
from tasks.jobs.state.outcome import checked
from tasks.jobs.states import ACTIVE
from tasks.providers.call import ASK, ApiCall, ApiReply, Ask
from tasks.runtime import Runtime
from tasks.tracing import activate

log = logging.getLogger(__name__)

#: Seconds between two checks whether a running batch's jobs have ended.
CANCEL_LOOK_S = 0.25


class BatchRunner:
    def __init__(self, recorder: Recorder, store: JobStore, runtime: Runtime, fill: Callable[[], object]) -> None:
        self._recorder = recorder
        self._store = store
        self._runtime = runtime
        self._fill = fill

    def run(self, incarnation: str, batch: Sequence[Entry], ending: Sequence[Chunk]) -> set[str]:
        """Run a batch of a single stage, with the spec of its first item; `ending` chunks end with the batch. Returns
        the stages that items passed to."""
        chunks = {entry.chunk.id: entry.chunk for entry in batch} | {chunk.id: chunk for chunk in ending}
        run = self._recorder.begin(incarnation, batch)
        found = self._recorder.look_up(run)
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
            seconds_each, at = (now - at) / len(page) if page else 0.0, now  # cache hits take no time
            self._recorder.keep([(shared[name][0], each.result) for name, each in page.items()])
            pairs = [(entry, Computed(found[entry.request], 0.0)) for entry in hits]
            pairs += [(entry, each) for name, each in page.items() for entry in shared[name]]
            hits = []
            left -= Counter(entry.chunk.id for name in page for entry in shared[name])
            # A chunk ends with its own last item: a slow API call does not delay other chunks of the same batch.
            over = {chunk.id for chunk in ending if not left[chunk.id]}
            ending = [chunk for chunk in ending if chunk.id not in over]
            named = over | {entry.chunk.id for entry, _ in pairs}
            onward |= self._recorder.commit(pairs, {name: chunks[name] for name in named}, over, seconds_each)
            if left and (over or (page and batch[0].stage.limits.most_out)):  # committed items release in-flight slots
                self._fill()
        return onward

    # --- computing ---

    def _computed(self, fresh: Mapping[str, Entry]) -> Iterator[Mapping[str, Computed]]:
        """Yield pages of results by name; at least one page, and each name exactly once."""
        names, entries = list(fresh), list(fresh.values())
        if not entries:
            yield {}
            return
        match entries[0].stage:
            case AskStage() as stage:
                yield from self._asked(stage, names, entries)
            case BatchStage() as stage:
                started = time.monotonic()
                results = self._run_batch(stage, entries)
                seconds = (time.monotonic() - started) / len(entries)
                yield {name: Computed(result, seconds) for name, result in zip(names, results, strict=True)}

    def _asked(
        self, stage: AskStage[Any], names: Sequence[str], entries: Sequence[Entry]
    ) -> Iterator[Mapping[str, Computed]]:
        ask = self._runtime.get(ASK)
        work = [
            _within(entry, self._recorder.trace.of(entry.chunk.id), stage.ask(_ask_for(ask, entry), entry.work))
            for entry in entries
        ]
        jobs = Counter(entry.chunk.job_id for entry in entries)  # number of calls in flight per job
        yield {}  # an empty page, so that cache hits are committed before the first reply
        for page in self._runtime.run_each(work, self._cancel_check(jobs)):
            jobs -= Counter(entries[index].chunk.job_id for index, _, _ in page)
            yield {names[index]: Computed(_as_result(outcome), seconds) for index, outcome, seconds in page}

    def _run_batch(self, stage: BatchStage[Any], entries: Sequence[Entry]) -> Sequence[Result]:
        context = self._context(self._cancel_check({entry.chunk.job_id for entry in entries}))
        try:
            results = stage.run(context, [entry.work for entry in entries])
        except Exception as error:  # noqa: BLE001  # a bug in a kind fails its items, and must not end the worker
            return [_as_result(error)] * len(entries)
        if len(results) != len(entries):
            kind = entries[0].recipe.kind
            message = f"The kind {kind} returned {len(results)} results for {len(entries)} items."
            return [Result(error=ItemError("internal_error", message))] * len(entries)
        return [checked(result) for result in results]

    def run_stream(
        self,
        incarnation: str,
        stage: StreamStage[Any],
        chunks: Sequence[Chunk],
        entries: Sequence[Entry],
        take: Take,
        jobs: set[str],
        pass_on: Callable[[set[str]], None],
    ) -> set[str]:
        """Run chunks on an engine that admits further chunks while it runs; their jobs are added to `jobs`. Each commit
        after which items pass to other stages calls `pass_on` with them. Returns the stages of the last commit."""
        feed = Feed(self._recorder, incarnation, take, self._cancel_check(jobs), pass_on)
        context = self._context(feed.is_cancelled)
        feed.add(chunks, entries)
        failure = Result(error=ItemError("internal_error", "The engine ended without a result for this item."))
        try:
            if entries:
                stage.stream(context, feed)
        except Exception as error:  # noqa: BLE001  # a bug in a kind fails its items, and must not end the worker
            failure = _as_result(error)
        feed.end(STOPPED if context.is_cancelled() else failure)
        return feed.onward

    def _context(self, is_cancelled: Callable[[], bool]) -> Context:
        return Context(self._runtime.worker, is_cancelled, self._runtime)

    def _cancel_check(self, jobs: Collection[str]) -> Callable[[], bool]:
        """Return a function that checks whether every job has ended. `jobs` may change meanwhile."""
        looked_at, answer = time.monotonic(), False

        def is_cancelled() -> bool:
            nonlocal looked_at, answer
            if not answer and time.monotonic() - looked_at > CANCEL_LOOK_S:
                looked_at = time.monotonic()
                try:
                    answer = not any(state in ACTIVE for state in self._store.states(sorted(jobs)))
                except RedisError as error:  # the batch continues; its commit waits for Redis
                    log.debug("cannot check whether the jobs of a batch have ended: %s", error)
            return answer

        return is_cancelled


def _ask_for(ask: Ask, entry: Entry) -> Ask:
    """Bind `ask` to an item: its calls are queued, and their cost is counted, under the item's job and token."""
    recipe, item = entry.recipe, entry.work.index

    async def ask_for(call: ApiCall) -> ApiReply:
        return await ask(replace(call, job_id=recipe.id, item=item, priority=recipe.priority, token=recipe.token))

    return ask_for


async def _within(entry: Entry, span: Span, work: Coroutine[Any, Any, Result]) -> Result:
    """Await an item's result, or time out at the item's own deadline. Its calls are part of the span."""
    seconds = entry.recipe.item_deadline_s
    try:
        with job_context((entry.chunk.job_id,)), activate(span):
            async with timeout(seconds):
                return await work
    except TimeoutError:
        failure = ItemError("timed_out", f"The item timed out: `item_deadline_s` is {seconds} s.")
        return Result(error=failure, timed_out=True)


def _as_result(error: Result | BaseException) -> Result:
    """Convert an exception to a failed result: an AssayError by its name, other exceptions as `internal_error`."""
    if isinstance(error, Result):
        return checked(error)
    if isinstance(error, CancelledError):
        return STOPPED
    if isinstance(error, AssayError):
        return Result.of_error(error)
    log.error("a batch failed with an unexpected error", exc_info=error)
    return Result(error=ItemError("internal_error", f"{type(error).__name__}: {error}"))
