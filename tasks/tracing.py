"""Tracing with OpenTelemetry spans: serializes the context of a request for its job, and marks spans as failed.

Code begins spans with the OpenTelemetry API, which does nothing by itself: if `ASSAY_TRACES_URL` is unset, every
tracer is the API's no-op tracer, and the SDK is not imported. `otlp.py` configures the SDK.

A span holds ids, names, counts and types of errors. It never holds the text of a user or of an API, nor a key: readers
of traces may not be allowed to read them. Therefore a span records no exceptions; `fail` sets the type of the error.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NoOpTracer,
    Span,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from config.settings import Settings

_HEADER = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


def create_tracer(settings: Settings, service: str) -> Tracer:
    """Return the tracer of this process, named `assay-<service>` in traces. It connects on first use."""
    if not settings.traces_url:
        return NoOpTracer()
    from tasks.otlp import OtlpTracer  # an extra, which may not be installed

    return OtlpTracer(settings.traces_url, settings.traces_share, f"assay-{service}")


def close_tracer(tracer: Tracer) -> None:
    """Send the spans that have ended, within a few seconds. The tracer must not begin spans afterwards."""
    if not isinstance(tracer, NoOpTracer):
        from tasks.otlp import OtlpTracer

        assert isinstance(tracer, OtlpTracer)
        tracer.close()


def traceparent_of(span: Span) -> str:
    """Return the span's context as the text of a W3C `traceparent` header; empty if tracing is off."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
    return carrier.get(_HEADER, "")


def current_traceparent() -> str:
    """Return the context of the span that the running code is part of; empty if tracing is off."""
    return traceparent_of(get_current_span())


def parent_context(traceparent: str) -> Context:
    """Parse a `traceparent` into the context of a child span. Without a valid one, the child begins a trace."""
    return _PROPAGATOR.extract({_HEADER: traceparent}, Context()) if traceparent else Context()


def links_to(traceparents: Iterable[str]) -> list[Link]:
    """Return links to the spans of these `traceparent` texts. Invalid texts are skipped."""
    contexts = (get_current_span(parent_context(each)).get_span_context() for each in traceparents)
    return [Link(context) for context in contexts if context.is_valid]


def activate(span: Span) -> AbstractContextManager[Span]:
    """Make spans that are begun inside this block, and in coroutines started by it, children of the span.

    The span stays open. An exception that leaves the block is not recorded: its message may quote a user's text.
    """
    if not span.get_span_context().is_valid:  # tracing is off: skip the cost of a context switch per item
        return nullcontext(span)
    return use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False)


def fail(span: Span, error_type: str) -> None:
    """Mark the span as failed by a type of error, never by a message."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))
