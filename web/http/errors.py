"""Error handlers: every error becomes `application/problem+json` (RFC 9457) with its cause and a remedy.

A response never holds a stack trace. A person who opens a wrong address gets a page instead.
"""

import logging

from flask import Flask, Response, request
from pydantic_core import to_json
from redis.exceptions import RedisError
from werkzeug.exceptions import HTTPException, NotFound

from config.profiles import UnknownProfile
from config.queues import UnknownQueue
from config.rewards import UnknownReward
from tasks.connections import redact, translate_redis_error
from tasks.errors import (
    BacklogFull,
    Conflict,
    InvalidRequest,
    MemoryFull,
    RedisRefused,
    Retryable,
    StorageNotShared,
    StoredFileMissing,
    UnknownBenchmark,
    UnknownJob,
    UnknownKind,
)
from web.dashboard import not_found
from web.http.http_error import HttpError
from web.services import services

log = logging.getLogger(__name__)

#: Seconds until a client may retry when Redis is unavailable, or the backlog or memory is full.
RETRY_AFTER_S = 5

#: HTTP status, type and title of the errors of `tasks`; the first class that matches applies.
TABLE: tuple[tuple[type[Exception], int, str, str], ...] = (
    (UnknownKind, 422, "unknown_kind", "Unknown kind of job"),
    (InvalidRequest, 422, "invalid_request", "Invalid request"),
    (UnknownJob, 404, "unknown_job", "Unknown job"),
    (UnknownBenchmark, 404, "unknown_benchmark", "Unknown benchmark"),
    (UnknownQueue, 404, "unknown_queue", "Unknown queue"),
    (UnknownProfile, 404, "unknown_profile", "Unknown profile"),
    (UnknownReward, 422, "unknown_reward", "Unknown reward"),
    (Conflict, 409, "conflict", "Conflict"),
    (BacklogFull, 503, "backlog_full", "Backlog full"),
    (MemoryFull, 503, "memory_full", "Memory full"),
    (StorageNotShared, 503, "storage_not_shared", "Storage not shared"),
    (StoredFileMissing, 410, "stored_file_missing", "A file is gone"),
    (Retryable, 503, "unavailable", "Service unavailable"),
    (RedisRefused, 503, "unavailable", "Service unavailable"),
)

_HTTP_DETAILS = {
    404: "This path does not exist; GET /openapi.json lists every path.",
    405: "This path does not support the method; the Allow header lists the supported methods.",
}


def problem(status: int, kind: str, title: str, detail: str, field: str = "", line: int | None = None) -> Response:
    sentence = detail if detail.endswith(".") else f"{detail}."
    body = {"type": f"urn:assay:{kind}", "title": title, "status": status, "detail": sentence}
    if field:
        body["field"] = field
    if line is not None:
        body["line"] = line
    response = Response(to_json(body), status, mimetype="application/problem+json")
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def init_app(app: Flask) -> None:
    app.register_error_handler(Exception, handle)


def handle(error: Exception) -> Response:
    if isinstance(error, NotFound | UnknownJob) and not_found.wants_page():
        return not_found.page(str(error) if isinstance(error, UnknownJob) else None)
    match error:
        case HTTPException():
            return _from_werkzeug(error)
        case HttpError():
            return _from_http_error(error)
        case RedisError():
            return _from_table(translate_redis_error(error, redact(services().settings.redis_url)))
        case _:
            return _from_table(error)


def _from_werkzeug(error: HTTPException) -> Response:
    status = error.code or 500
    detail = _HTTP_DETAILS.get(status) or error.description or error.name
    response = problem(status, error.name.lower().replace(" ", "_"), error.name, detail)
    response.headers.extend(  # e.g. Allow on 405
        (name, value) for name, value in error.get_headers() if name not in ("Content-Type", "Content-Length")
    )
    return response


def _from_http_error(error: HttpError) -> Response:
    response = problem(error.status, error.kind, error.title, str(error), error.field)
    response.headers.update(error.headers)
    return response


def _from_table(error: Exception) -> Response:
    for kind, status, name, title in TABLE:
        if isinstance(error, kind):
            return problem(
                status, name, title, str(error), getattr(error, "field", ""), getattr(error, "line", None) or None
            )
    return _unexpected(error)


def _unexpected(error: Exception) -> Response:
    log.exception("unexpected error in %s %s", request.method, request.path, exc_info=error)
    return problem(
        500, "internal", "Internal error", "An unexpected error occurred; the log of the server has the details."
    )
