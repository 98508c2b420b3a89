"""A span for every chunk that runs, from its first batch to its end. Moving the parts of stored jobs has none."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tasks.jobs.entry import Entry
from tasks.jobs.ledger import Settled
from tasks.tracing import NO_SPAN, Attributes, Span, Tracer

#: Other jobs that a chunk is linked with at most: hundreds may share a batch.
MOST_LINKS = 32


@dataclass(slots=True)
class _Running:
    span: Span
    job: str
    context: str
    """Of its job."""
    counts: Counter[str] = field(default_factory=Counter)


class ChunkTrace:
    """One per process, for all its threads."""

    def __init__(self, tracer: Tracer, worker: str, queue: str) -> None:
        self._tracer, self._worker, self._queue = tracer, worker, queue
        self._running: dict[str, _Running] = {}

    def begin(self, batch: Sequence[Entry]) -> None:
        """These items are about to run together; their chunks may have begun before."""
        if not self._tracer.is_on or not batch:
            return
        together = {entry.chunk.job: entry.recipe.trace for entry in batch}
        if batch[0].stage.streams:  # they join what its engine runs already
            together |= {each.job: each.context for each in self._running.values()}
        for entry in {entry.chunk.id: entry for entry in batch}.values():
            chunk, recipe = entry.chunk, entry.recipe
            if chunk.id in self._running:
                continue
            others = [context for job, context in together.items() if job != chunk.job and context][:MOST_LINKS]
            attributes: Attributes = {
                "assay.job.id": chunk.job,
                "assay.chunk.id": chunk.id,
                "assay.kind": recipe.kind,
                "assay.stage": chunk.stage,
                "assay.priority": recipe.priority,
                "assay.queue": self._queue,
                "assay.worker": self._worker,
                "assay.items": len(chunk.items),
            }
            span = self._tracer.begin(f"chunk {recipe.kind}", "consumer", attributes, recipe.trace, others)
            self._running[chunk.id] = _Running(span, chunk.job, recipe.trace)

    def of(self, chunk: str) -> Span:
        running = self._running.get(chunk)
        return running.span if running else NO_SPAN

    def count(self, chunk: str, settled: Iterable[Settled]) -> None:
        """What came of items. Those that go on to another stage, or are tried again, have no outcome yet."""
        if running := self._running.get(chunk):
            running.counts.update("onward" if each.next else each.status for each in settled)
            running.counts["cached"] += sum(each.cached for each in settled)

    def end(self, chunk: str, error: str = "") -> None:
        if running := self._running.pop(chunk, None):
            running.span.note({f"assay.items.{name}": number for name, number in running.counts.items() if number})
            if error:
                running.span.fail(error)
            running.span.end()
