"""Span of every request, where traces are configured. It ends when the response begins."""

from flask import Flask, Response, g, request
from opentelemetry import context
from opentelemetry.trace import NoOpTracer, SpanKind, Tracer, get_current_span, set_span_in_context

from tasks.jobs.model import JOB_ID
from tasks.tracing import fail, parent_context
from web.http.request_metrics import METHODS


def init_app(app: Flask, tracer: Tracer) -> None:
    if isinstance(tracer, NoOpTracer):
        return

    def begin() -> None:
        # Neither path nor query: they may hold a token, or any text that a client made up.
        method = request.method if request.method in METHODS else "_OTHER"
        route = {"http.route": request.url_rule.rule} if request.url_rule else {}
        span = tracer.start_span(
            " ".join([method, *route.values()]),
            parent_context(request.headers.get("traceparent", "")),
            SpanKind.SERVER,
            {"http.request.method": method, **route},
        )
        g.span_token = context.attach(set_span_in_context(span))
        note_job(str((request.view_args or {}).get("job_id", "")))

    def end(response: Response) -> Response:
        span = get_current_span()
        span.set_attribute("http.response.status_code", response.status_code)
        if response.status_code >= 500:
            fail(span, str(response.status_code))
        detach()
        return response

    def detach(_error: BaseException | None = None) -> None:
        if "span_token" in g:
            get_current_span().end()
            context.detach(g.pop("span_token"))  # the thread serves other requests next

    app.before_request(begin)
    app.after_request(end)
    app.teardown_request(detach)


def note_job(job_id: str) -> None:
    """Set the job that this request is about on its span."""
    if JOB_ID.fullmatch(job_id):
        get_current_span().set_attribute("assay.job.id", job_id)
