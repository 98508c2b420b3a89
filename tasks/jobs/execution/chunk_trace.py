"""Trace spans of running chunks, each from the chunk's first batch to its end. Maintenance of stored jobs is not
traced."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opentelemetry.trace import INVALID_SPAN, NoOpTracer, Span, SpanKind, Tracer

from tasks.jobs.execution.entry import Entry
from tasks.jobs.state.ledger import Settled
from tasks.tracing import fail, links_to, parent_context

#: Limit of the other jobs that a chunk's span is linked with: hundreds of jobs may share a batch.
MOST_LINKS = 32


@dataclass(slots=True)
class _RunningSpan:
    span: Span
    job_id: str
    traceparent: str
    """Trace context of the request that submitted the job; empty if the request was not traced."""
    counts: Counter[str] = field(default_factory=Counter)


class ChunkTrace:
    """Open spans of this process's chunks, shared by its threads."""

    def __init__(self, tracer: Tracer, worker: str, queue: str) -> None:
        self._tracer, self._worker, self._queue = tracer, worker, queue
        self._running: dict[str, _RunningSpan] = {}

    def begin(self, batch: Sequence[Entry]) -> None:
        """Open the spans of chunks whose items are about to run in the same batch. Spans that are open already stay."""
        if isinstance(self._tracer, NoOpTracer) or not batch:
            return
        together = {entry.chunk.job_id: entry.recipe.trace for entry in batch}
        if batch[0].stage.mode == "stream":  # the items join the running batch of the engine
            together |= {each.job_id: each.traceparent for each in self._running.values()}
        for entry in {entry.chunk.id: entry for entry in batch}.values():
            chunk, recipe = entry.chunk, entry.recipe
            if chunk.id in self._running:
                continue
            others = [trace for job_id, trace in together.items() if job_id != chunk.job_id and trace][:MOST_LINKS]
            span = self._tracer.start_span(
                f"chunk {recipe.kind}",
                parent_context(recipe.trace),
                SpanKind.CONSUMER,
                {
                    "assay.job.id": chunk.job_id,
                    "assay.chunk.id": chunk.id,
                    "assay.kind": recipe.kind,
                    "assay.stage": chunk.stage,
                    "assay.priority": recipe.priority,
                    "assay.queue": self._queue,
                    "assay.worker": self._worker,
                    "assay.items": len(chunk.items),
                },
                links_to(others),
            )
            self._running[chunk.id] = _RunningSpan(span, chunk.job_id, recipe.trace)

    def of(self, chunk: str) -> Span:
        """Return the chunk's open span, or a no-op span."""
        running = self._running.get(chunk)
        return running.span if running else INVALID_SPAN

    def count(self, chunk: str, settled: Iterable[Settled]) -> None:
        """Count outcomes of the chunk's items. An item that passes to a later stage, or is retried, has no outcome
        yet."""
        if running := self._running.get(chunk):
            running.counts.update("onward" if each.next else each.status for each in settled)
            running.counts["cached"] += sum(each.cached for each in settled)

    def end(self, chunk: str, error: str = "") -> None:
        if running := self._running.pop(chunk, None):
            counts = {f"assay.items.{name}": number for name, number in running.counts.items() if number}
            running.span.set_attributes(counts)
            if error:
                fail(running.span, error)
            running.span.end()
