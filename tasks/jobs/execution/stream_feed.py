"""Feed of an engine with continuous batching: leases further chunks while the engine runs, as its rows become free.

A device is therefore never drained between two chunks, and requests of several jobs share the running batch. Results
are committed as they arrive, a few times per second.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tasks.jobs.execution.entry import Computed, Entry
from tasks.jobs.execution.recorder import Recorder
from tasks.jobs.model import Result
from tasks.jobs.stage import Work
from tasks.jobs.state.ledger import Chunk
from tasks.jobs.state.outcome import checked

#: Maximum seconds between two commits, and number of results that are committed at once.
COMMIT_S, COMMIT_ITEMS = 0.2, 64
#: Seconds after which no further chunks are taken. It is long, because an engine runs half empty while it finishes its
#: last items. But the task must end, and its message be acknowledged, within `DELIVERY_TIMEOUT_S` of RabbitMQ: what
#: remains of it is enough for an answer that takes the whole default timeout of generation, and five minutes more.
#: A worker that is stopping takes no chunks anyway.
SESSION_S = 900.0
#: Seconds before an empty queue is polled again.
TAKE_S = 0.05

#: Leases further chunks that may join the running batch, and returns them with their items.
Take = Callable[[], tuple[Sequence[Chunk], Sequence[Entry]]]


class Feed:
    """Implementation of `tasks.jobs.stage.Feed` for a single run of an engine."""

    def __init__(
        self,
        recorder: Recorder,
        incarnation: str,
        take: Take,
        is_unwanted: Callable[[], bool],
        pass_on: Callable[[set[str]], None] = lambda _: None,
    ) -> None:
        """`pass_on`: called with the stages that items passed to, after every commit, since an engine may run for an
        hour."""
        self._recorder = recorder
        self._incarnation = incarnation
        self._take = take
        self._is_unwanted = is_unwanted
        self._pass_on = pass_on
        self._ready: deque[Entry] = deque()
        self._shared: dict[str, list[Entry]] = {}
        self._running: dict[int, tuple[Entry, float]] = {}
        self._done: list[tuple[Entry, Computed]] = []
        self._chunks: dict[str, Chunk] = {}
        self._left: dict[str, int] = {}
        self._until = time.monotonic() + SESSION_S
        self._next_take = float("-inf")
        self._committed_at = time.monotonic()
        self.onward: set[str] = set()

    def add(self, chunks: Sequence[Chunk], entries: Sequence[Entry]) -> None:
        """Claim the items of these chunks. Cache hits are committed at once."""
        run = self._recorder.begin(self._incarnation, entries)
        found = self._recorder.look_up(run)
        for chunk in chunks:
            self._chunks[chunk.id] = chunk
            self._left[chunk.id] = sum(entry.chunk.id == chunk.id for entry in run)
        for entry in run:
            if entry.request in found:
                self._done.append((entry, Computed(found[entry.request], 0.0)))
            elif entry.name in self._shared:  # equal requests are computed once
                self._shared[entry.name].append(entry)
            else:
                self._shared[entry.name] = [entry]
                self._ready.append(entry)
        if self._done or not all(self._left[chunk.id] for chunk in chunks):
            self._commit()

    def more(self, room: int) -> Sequence[Work[Any]]:
        now = time.monotonic()
        if self._done and now - self._committed_at > COMMIT_S:
            self._commit()
        while len(self._ready) < room and self._next_take < now < self._until and not self.is_cancelled():
            chunks, entries = self._take()
            if chunks:
                self.add(chunks, entries)
            else:
                self._next_take = now + TAKE_S
        given = [self._ready.popleft() for _ in range(min(room, len(self._ready)))]
        self._running |= {id(entry.work): (entry, now) for entry in given}
        return [entry.work for entry in given]

    def is_cancelled(self) -> bool:
        return self._is_unwanted()

    def done(self, work: Work[Any], result: Result) -> None:
        entry, began = self._running.pop(id(work))
        now = time.monotonic()
        result = checked(result)
        self._recorder.keep([(entry, result)])
        self._done += [(each, Computed(result, now - began)) for each in self._shared.pop(entry.name)]
        if now - self._committed_at > COMMIT_S or len(self._done) >= COMMIT_ITEMS:
            self._commit()

    def keep_file(self, work: Work[Any], body: bytes, suffix: str) -> str | None:
        entry, _ = self._running[id(work)]
        return self._recorder.keep_file(entry, body, suffix)

    def end(self, failure: Result) -> None:
        """Finish after the engine has ended: items without a result get `failure`."""
        for entry in [*(entry for entry, _ in self._running.values()), *self._ready]:
            self._done += [(each, Computed(failure, 0.0)) for each in self._shared.pop(entry.name)]
        self._running, self._ready = {}, deque()
        self._commit()

    def _commit(self) -> None:
        done, self._done = self._done, []
        now = time.monotonic()
        computed = sum(not each.result.cached for _, each in done)
        seconds_each = (now - self._committed_at) / computed if computed else 0.0
        self._committed_at = now
        for entry, _ in done:
            self._left[entry.chunk.id] -= 1
        over = {name for name, left in self._left.items() if left == 0}
        named = over | {entry.chunk.id for entry, _ in done}
        if named:
            chunks = {name: self._chunks[name] for name in named}
            self.onward = self._recorder.commit(done, chunks, over, seconds_each)
            if self.onward:
                self._pass_on(self.onward)
        for name in over:
            del self._chunks[name], self._left[name]
