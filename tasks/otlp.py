"""Trace exporter: OpenTelemetry's SDK, which sends spans by OTLP over HTTP. The only module that imports the SDK.

Exporting never blocks jobs: ended spans wait in a bounded queue for a thread that sends them. Spans that do not fit
into the queue, or that the collector does not accept, are dropped. Headers that a collector requires, such as a key,
are set in the standard variable of OpenTelemetry, `OTEL_EXPORTER_OTLP_HEADERS`.
"""

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, Tracer

from tasks.connections import redact

log = logging.getLogger(__name__)

#: Capacity in spans of the queue of ended spans, and of a request to the collector; a span is about a kilobyte.
QUEUE_SPANS, BATCH_SPANS = 4096, 512
#: Seconds between two requests, timeout of a request with its retries, and timeout of the last request at shutdown.
SEND_S, TRY_S, CLOSE_S = 1.0, 5.0, 3.0


class OtlpTracer(Tracer):
    """Tracer whose SDK provider is created on first use in each process: a forked child has no thread of its parent."""

    def __init__(self, url: str, share: float, service: str) -> None:
        """`share`: sampling rate of the traces that begin in this process. A trace that a caller began is sampled if
        the caller samples it."""
        self._url, self._share, self._service = url, share, service
        self._lock = threading.Lock()
        self._provider: TracerProvider | None = None
        self._pid = 0

    def start_span(self, *args: Any, **options: Any) -> Span:
        return self._get().get_tracer("assay").start_span(*args, **options)

    def start_as_current_span(self, *args: Any, **options: Any) -> Any:
        return self._get().get_tracer("assay").start_as_current_span(*args, **options)

    def close(self) -> None:
        """Send the spans that have ended, within CLOSE_S seconds."""
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


class _Exporter(SpanExporter):
    """Exporter that logs a line when the collector stops accepting spans, and a line when it accepts spans again.

    The SDK's own exporter logs every failure.
    """

    def __init__(self, exporter: SpanExporter, place: str) -> None:
        self._exporter, self._place = exporter, place
        self._is_away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_away = result is not SpanExportResult.SUCCESS
        if is_away and not self._is_away:
            log.warning("traces are dropped: %s does not accept them; jobs do not wait for it", self._place)
        elif self._is_away and not is_away:
            log.info("traces are sent to %s again", self._place)
        self._is_away = is_away
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
