"""Traces by OpenTelemetry, sent by OTLP over HTTP. The only module that imports it; `tracing.py` says when.

Nothing waits for the collector: spans that have ended wait for a thread that sends them, in a queue with a bound, and
what it cannot hold or send is dropped. Headers that a collector asks for are the standard's own variable,
`OTEL_EXPORTER_OTLP_HEADERS`.
"""

import logging
import os
import threading
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tasks.connections import redact
from tasks.tracing import Attributes, Role, Span

log = logging.getLogger(__name__)

#: Spans that may wait to be sent, and that are sent at once; a span is about a kilobyte.
QUEUE_SPANS, BATCH_SPANS = 4096, 512
#: Seconds between two sends, that one may take with its retries, and that the last may take when the process ends.
SEND_S, TRY_S, CLOSE_S = 1.0, 5.0, 3.0

_KINDS: dict[Role, SpanKind] = {
    "server": SpanKind.SERVER,
    "consumer": SpanKind.CONSUMER,
    "client": SpanKind.CLIENT,
}
_PROPAGATOR = TraceContextTextMapPropagator()


class OtlpTracer:
    """Implements tasks.tracing.Tracer. What it holds is made on first use, in the process that uses it: a prefork child
    has no thread of its parent's."""

    is_on = True

    def __init__(self, url: str, share: float, service: str) -> None:
        """`share` of the traces that begin here is kept; one that a caller began is kept if the caller does."""
        self._url, self._share, self._service = url, share, service
        self._lock = threading.Lock()
        self._provider: TracerProvider | None = None
        self._pid = 0

    def begin(self, name: str, role: Role, attributes: Attributes, parent: str = "", links: Sequence[str] = ()) -> Span:
        tracer = self._get().get_tracer("assay")
        contexts = [get_current_span(_context(link)).get_span_context() for link in links]
        return _Span(
            tracer.start_span(
                name,
                _context(parent),
                _KINDS[role],
                attributes,
                [Link(context) for context in contexts if context.is_valid],
            )
        )

    def close(self) -> None:
        with self._lock:
            provider, self._provider = self._provider, None
        if provider and self._pid == os.getpid():
            last = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
            last.start()
            last.join(CLOSE_S)

    def _get(self) -> TracerProvider:
        with self._lock:
            if self._provider is None or self._pid != os.getpid():
                self._provider, self._pid = self._create(), os.getpid()
            return self._provider

    def _create(self) -> TracerProvider:
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(self._share)),
            resource=Resource.create({"service.name": self._service, "process.pid": os.getpid()}),
            shutdown_on_exit=False,
        )
        exporter = _Exporter(OTLPSpanExporter(self._url, timeout=TRY_S), redact(self._url))
        provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=QUEUE_SPANS,
                schedule_delay_millis=SEND_S * 1000,
                max_export_batch_size=BATCH_SPANS,
            )
        )
        return provider


class _Span:
    """Implements tasks.tracing.Span."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def context(self) -> str:
        own = self._span.get_span_context()
        return f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags & 1:02x}"

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        self._span.end()


class _Exporter(SpanExporter):
    """Says once that the collector does not take spans, and once that it does again; the library says it every time."""

    def __init__(self, exporter: SpanExporter, place: str) -> None:
        self._exporter, self._place = exporter, place
        self._is_away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_away = result is not SpanExportResult.SUCCESS
        if is_away and not self._is_away:
            log.warning("traces are dropped: %s does not take them; jobs do not wait for it", self._place)
        elif self._is_away and not is_away:
            log.info("traces are sent to %s again", self._place)
        self._is_away = is_away
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _context(traceparent: str) -> Context:
    """Without one, or with one that is none: nothing, so that a trace begins."""
    return _PROPAGATOR.extract({"traceparent": traceparent}, Context()) if traceparent else Context()
