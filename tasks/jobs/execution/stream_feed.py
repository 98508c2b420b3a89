"""A stage whose engine takes items as it has room for them: further chunks are taken while others run.

So a device is never drained between two chunks, and requests of several jobs share one running batch. Results are
committed as they come, a few times a second.
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

#: Seconds between two commits, and results that do not wait so long.
COMMIT_S, COMMIT_ITEMS = 0.2, 64
#: Seconds after which no further chunks are taken, well before the broker would deliver the message again. Long, as an
#: engine that comes to an end stands half empty meanwhile; a worker that is to stop takes none in any case.
SESSION_S = 1800.0
#: Seconds before a queue that had nothing is looked at again.
TAKE_S = 0.05

#: Further chunks that may join, with their items.
Take = Callable[[], tuple[Sequence[Chunk], Sequence[Entry]]]


class Feed:
    """Implements tasks.jobs.stage.Feed for one run of an engine."""

    def __init__(
        self,
        recorder: Recorder,
        incarnation: str,
        take: Take,
        is_unwanted: Callable[[], bool],
        pass_on: Callable[[set[str]], None] = lambda _: None,
    ) -> None:
        """`pass_on`: told the stages that items went on to, with every commit: an engine may run for an hour."""
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
        """Claim the items of these chunks. What the cache has is done at once."""
        run = self._recorder.begin(self._incarnation, entries)
        found = self._recorder.look_up(run)
        for chunk in chunks:
            self._chunks[chunk.id] = chunk
            self._left[chunk.id] = sum(entry.chunk.id == chunk.id for entry in run)
        for entry in run:
            if entry.request in found:
                self._done.append((entry, Computed(found[entry.request], 0.0)))
            elif entry.name in self._shared:  # computed once for all
                self._shared[entry.name].append(entry)
            else:
                self._shared[entry.name] = [entry]
                self._ready.append(entry)
        if self._done or not all(self._left[chunk.id] for chunk in chunks):
            self._commit()

    def more(self, room: int) -> Sequence[Work[Any]]:
        now = time.monotonic()
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
        """Asked at every step of the engine: what is due is committed then, however long the next result takes."""
        if self._done and time.monotonic() - self._committed_at > COMMIT_S:
            self._commit()
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
        """The engine has ended: what it left undone has failed so."""
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
