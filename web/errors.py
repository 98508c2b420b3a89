"""Every error as `application/problem+json` with a sentence for the client; never a stack trace."""

import json
import logging

from flask import Flask, Response
from redis.exceptions import RedisError
from werkzeug.exceptions import HTTPException

from tasks.connections import explain, redact
from tasks.errors import AssayError, Retryable
from web.services import services

log = logging.getLogger(__name__)

#: Seconds after which a client may try again when Redis is away.
RETRY_AFTER_S = 5


def problem(status: int, title: str, detail: str) -> Response:
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    response = Response(json.dumps(body), status, mimetype="application/problem+json")
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def init_app(app: Flask) -> None:
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(AssayError, _assay_error)
    app.register_error_handler(RedisError, _redis_error)
    app.register_error_handler(Exception, _unexpected)


def _http_error(error: HTTPException) -> Response:
    response = problem(error.code or 500, error.name, error.description or error.name)
    response.headers.extend(  # e.g. Allow on 405
        (name, value) for name, value in error.get_headers() if name not in ("Content-Type", "Content-Length")
    )
    return response


def _assay_error(error: AssayError) -> Response:
    if isinstance(error, Retryable):
        return problem(503, "Service unavailable", str(error))
    return problem(500, "Internal error", str(error))


def _redis_error(error: RedisError) -> Response:
    return _assay_error(explain(error, redact(services().settings.redis_url)))


def _unexpected(error: Exception) -> Response:
    log.exception("unexpected error in a request", exc_info=error)
    return problem(500, "Internal error", "The server failed in a way nobody foresaw; its log has the details.")
