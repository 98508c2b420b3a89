"""A span for every request, where traces are asked for. It ends when the answer begins, as requests do for metrics."""

from flask import Flask, Response, request

from tasks.jobs.model import JOB_ID
from tasks.tracing import NO_SPAN, Tracer, current, make_current
from web.traffic import METHODS


def init_app(app: Flask, tracer: Tracer) -> None:
    if not tracer.is_on:
        return

    def begin() -> None:
        # Neither path nor query: they may hold a token, or anybody's invention.
        method = request.method if request.method in METHODS else "_OTHER"
        route = {"http.route": request.url_rule.rule} if request.url_rule else {}
        span = tracer.begin(
            " ".join([method, *route.values()]),
            "server",
            {"http.request.method": method, **route},
            request.headers.get("traceparent", ""),
        )
        make_current(span)
        note_job(str((request.view_args or {}).get("job_id", "")))

    def end(response: Response) -> Response:
        current().note({"http.response.status_code": response.status_code})
        if response.status_code >= 500:
            current().fail(str(response.status_code))
        forget()
        return response

    def forget(_error: BaseException | None = None) -> None:
        current().end()
        make_current(NO_SPAN)  # the thread serves others next

    app.before_request(begin)
    app.after_request(end)
    app.teardown_request(forget)


def note_job(job: str) -> None:
    """The job that this request is about."""
    if JOB_ID.fullmatch(job):
        current().note({"assay.job.id": job})
