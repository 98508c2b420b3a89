"""One engine batch: claim, look up, compute, commit. Results of a kind that asks an API are committed as they come."""

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

#: Seconds between two looks at whether a running batch's jobs are over.
CANCEL_LOOK_S = 0.25


class BatchRunner:
    def __init__(self, recorder: Recorder, store: JobStore, runtime: Runtime, fill: Callable[[], object]) -> None:
        self._recorder = recorder
        self._store = store
        self._runtime = runtime
        self._fill = fill

    def run(self, incarnation: str, batch: Sequence[Entry], ending: Sequence[Chunk]) -> set[str]:
        """Run one batch, of one stage, with the first one's spec; `ending` chunks are over with it. Returns the stages
        that items went on to."""
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
            seconds_each, at = (now - at) / len(page) if page else 0.0, now  # what the cache had cost nothing
            self._recorder.keep([(shared[name][0], each.result) for name, each in page.items()])
            pairs = [(entry, Computed(found[entry.request], 0.0)) for entry in hits]
            pairs += [(entry, each) for name, each in page.items() for entry in shared[name]]
            hits = []
            left -= Counter(entry.chunk.id for name in page for entry in shared[name])
            # A chunk ends with its own last item: a call that hangs does not hold those that were taken along with it.
            over = {chunk.id for chunk in ending if not left[chunk.id]}
            ending = [chunk for chunk in ending if chunk.id not in over]
            named = over | {entry.chunk.id for entry, _ in pairs}
            onward |= self._recorder.commit(pairs, {name: chunks[name] for name in named}, over, seconds_each)
            if left and (over or (page and batch[0].stage.limits.most_out)):  # what came in makes room for others
                self._fill()
        return onward

    # --- computing ---

    def _computed(self, fresh: Mapping[str, Entry]) -> Iterator[Mapping[str, Computed]]:
        """Results by name, at least one page of them; all names once."""
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
        jobs = Counter(entry.chunk.job_id for entry in entries)  # that still wait for something
        yield {}  # what the cache had need not wait for the first reply
        for page in self._runtime.run_each(work, self._cancel_check(jobs)):
            jobs -= Counter(entries[index].chunk.job_id for index, _, _ in page)
            yield {names[index]: Computed(_as_result(outcome), seconds) for index, outcome, seconds in page}

    def _run_batch(self, stage: BatchStage[Any], entries: Sequence[Entry]) -> Sequence[Result]:
        context = self._context(self._cancel_check({entry.chunk.job_id for entry in entries}))
        try:
            results = stage.run(context, [entry.work for entry in entries])
        except Exception as error:  # noqa: BLE001  # a kind's own bug is its items' outcome, not our end
            return [_as_result(error)] * len(entries)
        if len(results) != len(entries):
            kind = entries[0].recipe.kind
            message = f"{kind} gave {len(results)} results for {len(entries)} items."
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
        """Run chunks on an engine that takes more while it runs; `jobs` grows with what it takes. Whenever items went
        on to other stages, `pass_on` is told; those of the last commit are returned."""
        feed = Feed(self._recorder, incarnation, take, self._cancel_check(jobs), pass_on)
        context = self._context(feed.is_cancelled)
        feed.add(chunks, entries)
        failure = Result(error=ItemError("internal_error", "The engine ended without an answer to this item."))
        try:
            if entries:
                stage.stream(context, feed)
        except Exception as error:  # noqa: BLE001  # a kind's own bug is its items' outcome, not our end
            failure = _as_result(error)
        feed.end(STOPPED if context.is_cancelled() else failure)
        return feed.onward

    def _context(self, is_cancelled: Callable[[], bool]) -> Context:
        return Context(self._runtime.worker, is_cancelled, self._runtime)

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
        return await ask(replace(call, job_id=recipe.id, item=item, priority=recipe.priority, token=recipe.token))

    return ask_for


async def _within(entry: Entry, span: Span, work: Coroutine[Any, Any, Result]) -> Result:
    """The result, or that the item's own deadline passed. Its calls are part of the span."""
    seconds = entry.recipe.item_deadline_s
    try:
        with job_context((entry.chunk.job_id,)), activate(span):
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
        return Result.of_error(error)
    log.error("a batch failed", exc_info=error)
    return Result(error=ItemError("internal_error", f"{type(error).__name__}: {error}"))
