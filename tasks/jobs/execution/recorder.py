"""Recorder: writes the begin and the results of a batch to the ledger and to the cache. Commits are idempotent."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tasks.errors import StorageUnavailable
from tasks.jobs.execution.chunk_trace import ChunkTrace
from tasks.jobs.execution.entry import Computed, Entry
from tasks.jobs.execution.parking import Parking
from tasks.jobs.execution.retry import MOST_ATTEMPTS, MOST_RESTS, retry_of
from tasks.jobs.execution.retry_redis import retry_redis
from tasks.jobs.model import Result
from tasks.jobs.state.cache import Answer, Cache
from tasks.jobs.state.large_values import LargeValues, needs_file, split
from tasks.jobs.state.ledger import Chunk, Commit, Ledger, Settled
from tasks.jobs.state.outcome import retry_later, settle

#: Approximate maximum size of the outcomes of a commit, in bytes.
COMMIT_BYTES = 512 * 1024
#: Maximum number of items of a commit: a commit of 500 items takes Redis up to 13 ms on a slow machine.
COMMIT_ITEMS = 200
#: Error type of an item whose file could not be written.
STORAGE_ERROR = StorageUnavailable().name


class Recorder:
    def __init__(
        self,
        ledger: Ledger,
        cache: Cache,
        values: LargeValues,
        worker: str,
        trace: ChunkTrace,
        parking: Parking,
        end: Callable[[Iterable[Chunk]], None],
    ) -> None:
        """`end` is called with chunks that a commit has ended."""
        self._ledger = ledger
        self._cache = cache
        self._values = values
        self._worker = worker
        self.trace = trace
        self._parking = parking
        self._end = end

    def begin(self, incarnation: str, batch: Sequence[Entry]) -> list[Entry]:
        """Begin a batch: claim the requests of its items. Returns the items to run; the remaining items are computed by
        other chunks, counted already, or belong to ended jobs."""
        grouped: dict[str, list[Entry]] = {}
        for entry in batch:
            grouped.setdefault(entry.chunk.id, []).append(entry)
        ordered = [entry for entries in grouped.values() for entry in entries]
        if not ordered:
            return []
        self.trace.begin(ordered)
        limits = [ordered[0].stage.limits.timeout_s, *(entry.recipe.item_deadline_s for entry in ordered)]
        verdicts = retry_redis(
            lambda: self._ledger.begin(
                incarnation,
                ordered[0].chunk.lease_id,
                min(filter(None, limits)),
                [(chunk, [(e.work.index, e.request) for e in entries]) for chunk, entries in grouped.items()],
            )
        )
        return [entry for entry, verdict in zip(ordered, verdicts, strict=True) if verdict == "r"]

    def look_up(self, entries: Sequence[Entry]) -> dict[str, Result]:
        """Look up the cache again after claiming the requests: the previous owner may have just stored the answer."""
        asked = [entry for entry in entries if entry.request and entry.recipe.cache == "use"]
        if not asked:
            return {}
        requests = dict.fromkeys(entry.request for entry in asked)
        return self._cache.get(asked[0].answers, list(requests))

    def keep(self, fresh: Sequence[tuple[Entry, Result]]) -> None:
        """Write successful results to the cache."""
        answers: dict[str, Answer] = {}
        for entry, result in fresh:
            if entry.key is None or result.error is not None:
                continue
            key = entry.stage.stored_key(entry.work, result, entry.key)
            if key is not None:
                request = entry.request if key is entry.key else entry.request_of(key)
                item = str(entry.payload.get("id") or "")
                answers[request] = Answer(result, entry.stage.name, entry.trial_key(key), item, entry.plan.labels)
        if answers:
            self._cache.put(fresh[0][0].answers, answers)

    def keep_file(self, entry: Entry, body: bytes, suffix: str) -> str | None:
        return self._values.keep_file(entry.chunk.layout.folder_of(entry.chunk.job_id), body, suffix)

    def commit(
        self,
        pairs: Sequence[tuple[Entry, Computed]],
        chunks: Mapping[str, Chunk],
        over: Collection[str],
        seconds_each: float,
    ) -> set[str]:
        """Count the results in `pairs`, and end the chunks in `over`; `chunks` has every chunk concerned. Takes a
        single round trip, which is retried after a lost reply, since counting is idempotent. Returns the stages that
        items passed to.

        An item whose value cannot be written now is not counted: it is pending again when its chunk ends, and its stage
        rests. The cache usually has its result by then."""
        settled: dict[str, list[Settled]] = {}
        for name, group in _by_chunk(pairs).items():
            results = self._stored(chunks[name], group)
            if results:
                settled[name] = results

        commits: list[Commit] = []
        for name, chunk in chunks.items():
            released = [entry.request for entry, _ in pairs if entry.chunk.id == name and entry.request]
            *first, last = split(settled.get(name, []), COMMIT_BYTES, COMMIT_ITEMS)
            commits += [Commit(chunk, self._worker, seconds_each * len(page), page) for page in first]
            commits.append(Commit(chunk, self._worker, seconds_each * len(last), last, released, name in over))
        retry_redis(partial(self._ledger.commit_all, commits))
        for name, results in settled.items():
            self.trace.count(name, results)
        for name in over:
            self.trace.end(name)
        self._end(chunks[name] for name in over)
        return {each.next for group in settled.values() for each in group if each.next}

    def _stored(self, chunk: Chunk, pairs: Sequence[tuple[Entry, Computed]]) -> list[Settled]:
        """Return the results of a chunk that can be counted, with long values moved to the storage. While the storage
        is unavailable these are the results that need no file; of a grouped stage none, since a group is never
        divided."""
        is_grouped = pairs[0][0].stage.grouped
        kept = [(entry, each) for entry, each in pairs if not _has_lost_file(each.result)]
        failure = StorageUnavailable(access="written") if len(kept) < len(pairs) else None
        results = [self._settled(entry, each) for entry, each in kept]
        folder, is_stored = chunk.layout.folder_of(chunk.job_id), chunk.layout.is_stored
        if not (failure and is_grouped):
            try:
                results = retry_redis(partial(self._values.shortened, folder, results, is_stored))
            except StorageUnavailable as error:
                failure, results = error, [each for each in results if not needs_file(each)]
        if failure is None:
            return results
        self._parking.rest(chunk, failure)  # before the commit, which may make the items pending again
        return [] if is_grouped else results

    def _settled(self, entry: Entry, computed: Computed) -> Settled:
        attempts = entry.work.attempts + 1
        result = computed.result
        if result.error and entry.stage.grouped:  # single items of a group are never retried
            result = replace(result, error=replace(result.error, retryable=False))
        # A result with a fallback waits for an API only briefly: the rest of it is complete.
        retry = retry_of(result.error, attempts, MOST_ATTEMPTS if result.if_not_retried else MOST_RESTS)
        if retry is None and result.if_not_retried:
            result = result.if_not_retried
        result = entry.stage.advance(entry.work, result)
        if result.error:  # a failed item still passes to its group, which would wait for it forever
            result = replace(result, next=entry.plan.group_stage_after(entry.stage.name))
        # Sum of the latencies of every stage so far.
        latency_ms = 1000 * computed.seconds + ((entry.work.carry or {}).get("latency_ms") or 0.0)
        fill = entry.recipe.fill
        settled = settle(entry.work.index, entry.payload, result, attempts, latency_ms, self._worker, fill)
        if retry is None or result.error is None:
            return settled
        return retry_later(settled, retry.delay_s, attempts, retry.rests)


def _by_chunk(pairs: Sequence[tuple[Entry, Computed]]) -> dict[str, list[tuple[Entry, Computed]]]:
    grouped: dict[str, list[tuple[Entry, Computed]]] = {}
    for entry, each in pairs:
        grouped.setdefault(entry.chunk.id, []).append((entry, each))
    return grouped


def _has_lost_file(result: Result) -> bool:
    """Return whether an item failed because a file beside its outcome, such as a video, could not be written."""
    return result.error is not None and result.error.type == STORAGE_ERROR
