"""What ledger and cache are told of a batch: that it begins, and what came of its items."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tasks.jobs.cache import Answer, Cache, request_hash
from tasks.jobs.entry import Computed, Entry
from tasks.jobs.kinds import RekeyingKind, answers_of
from tasks.jobs.ledger import Chunk, Ledger, Settled
from tasks.jobs.model import Result
from tasks.jobs.outcome import retry_later, settle
from tasks.jobs.patience import patiently
from tasks.jobs.storage import folder_name
from tasks.jobs.trace import ChunkTrace
from tasks.jobs.trials import key_of
from tasks.jobs.values import Values, split

#: Times an item is tried when its failure may pass, and the first pause between; the pause doubles.
MOST_ATTEMPTS = 3
FIRST_RETRY_S = 0.5
#: Times it is begun while what it needs rests; the rests of an open circuit add up to some minutes.
MOST_RESTS = 7
#: Bytes of outcomes in one commit, about.
COMMIT_BYTES = 512 * 1024
#: Items in one commit: 500 take Redis up to 13 ms on a slow machine.
COMMIT_ITEMS = 200


class Books:
    def __init__(self, ledger: Ledger, cache: Cache, values: Values, worker: str, trace: ChunkTrace) -> None:
        self._ledger = ledger
        self._cache = cache
        self._values = values
        self._worker = worker
        self.trace = trace

    def begin(self, incarnation: str, batch: Sequence[Entry]) -> list[Entry]:
        """Claim their requests. Returns those to be run: others are computed elsewhere, done, or no longer wanted."""
        grouped: dict[str, list[Entry]] = {}
        for entry in batch:
            grouped.setdefault(entry.chunk.id, []).append(entry)
        ordered = [entry for entries in grouped.values() for entry in entries]
        if not ordered:
            return []
        self.trace.begin(ordered)
        limits = [ordered[0].stage.timeout_s, *(entry.recipe.item_deadline_s for entry in ordered)]
        verdicts = patiently(
            lambda: self._ledger.begin(
                incarnation,
                ordered[0].chunk.token,
                min(filter(None, limits)),
                [(chunk, [(e.work.index, e.request) for e in entries]) for chunk, entries in grouped.items()],
            )
        )
        return [entry for entry, verdict in zip(ordered, verdicts, strict=True) if verdict == "r"]

    def look_up(self, entries: Sequence[Entry]) -> dict[str, Result]:
        """Once more after winning the claims: their last owner may have stored the answer just before."""
        asked = [entry for entry in entries if entry.request and entry.recipe.cache == "use"]
        if not asked:
            return {}
        requests = dict.fromkeys(entry.request for entry in asked)
        return self._cache.get(answers_of(asked[0].about.kind, asked[0].stage), list(requests))

    def keep(self, fresh: Sequence[tuple[Entry, Result]]) -> None:
        """Good answers go into the cache."""
        answers: dict[str, Answer] = {}
        for entry, result in fresh:
            if entry.key is None or result.error is not None:
                continue
            kind, spec, stage = entry.about.kind, entry.about.spec, entry.stage
            request: str = entry.request
            key: Mapping[str, Any] | None = entry.key
            if stage.rekeys:  # then it may be the answer to another request
                assert isinstance(kind, RekeyingKind)
                own = kind.stored_key(spec, stage.name, entry.work.item, result)
                key = key_of(own, entry.work.trial) if own is not None else None
                request = request_hash(answers_of(kind, stage), stage.name, key) if key is not None else ""
            if key is not None:
                item = str(entry.payload.get("id") or "")
                answers[request] = Answer(result, stage.name, key, item, kind.labels(spec))
        if answers:
            self._cache.put(answers_of(fresh[0][0].about.kind, fresh[0][0].stage), answers)

    def keep_file(self, entry: Entry, body: bytes, suffix: str) -> str | None:
        return self._values.keep_file(folder_name(entry.chunk.job, entry.chunk.layout), body, suffix)

    def commit(
        self,
        pairs: Sequence[tuple[Entry, Computed]],
        chunks: Mapping[str, Chunk],
        over: Collection[str],
        seconds_each: float,
    ) -> set[str]:
        """Count results, of these chunks and those in `pairs`; those that are `over` end. In one round trip, which may
        be repeated after a lost reply: counting is idempotent. Returns the stages that items went on to."""
        settled: dict[str, list[Settled]] = {}
        for entry, each in pairs:
            settled.setdefault(entry.chunk.id, []).append(self._settled(entry, each))
        short = {
            name: patiently(
                partial(self._values.shortened, folder_name(chunks[name].job, chunks[name].layout), results)
            )
            for name, results in settled.items()
        }

        def commit() -> None:
            pipeline = self._ledger.state.pipeline(transaction=False)
            for name, chunk in chunks.items():
                released = [entry.request for entry, _ in pairs if entry.chunk.id == name and entry.request]
                *first, last = split(short.get(name, []), COMMIT_BYTES, COMMIT_ITEMS)
                for page in first:
                    self._ledger.commit(chunk, self._worker, seconds_each * len(page), page, client=pipeline)
                self._ledger.commit(
                    chunk, self._worker, seconds_each * len(last), last, released, name in over, pipeline
                )
            pipeline.execute()

        patiently(commit)
        for name, results in settled.items():
            self.trace.count(name, results)
        for name in over:
            self.trace.end(name)
        return {each.next for group in settled.values() for each in group if each.next}

    def _settled(self, entry: Entry, computed: Computed) -> Settled:
        result = entry.about.kind.advance(entry.about.spec, entry.stage.name, entry.work, computed.result)
        if result.error:  # it goes on to its group, which must not wait for it; a group is retried whole or not at all
            error = replace(result.error, retryable=result.error.retryable and not entry.stage.grouped)
            result = replace(result, error=error, next=entry.about.group_stage_after(entry.stage.name))
        attempts = entry.work.attempts + 1
        # Of all stages together.
        latency_ms = 1000 * computed.seconds + ((entry.work.carry or {}).get("latency_ms") or 0.0)
        fill = entry.recipe.fill
        settled = settle(entry.work.index, entry.payload, result, attempts, latency_ms, self._worker, fill)
        if result.error is None or not result.error.retryable:
            return settled
        if rest_s := result.error.retry_after_s:
            return retry_later(settled, rest_s, attempts, rests=True) if attempts < MOST_RESTS else settled
        if attempts < MOST_ATTEMPTS:
            return retry_later(settled, FIRST_RETRY_S * 2 ** (attempts - 1), attempts)
        return settled
