"""Error tree of the client. The docstring of a class is its default message; its base class says which side must act.

AssayError
├── ApiError             the server answered with an error: status, title, detail, field
│   ├── InvalidRequest   400, 415, 422: the request breaks a rule; `field` says where
│   ├── Unauthorized     401, 403: the token is missing or wrong
│   ├── NotFound         404: no such job, or it has expired
│   ├── Conflict         409: the job's state, or an earlier request with this key, forbids it
│   ├── TooLarge         413: the request is larger than the server accepts
│   ├── QuotaExceeded    429: the quota is exceeded for longer than the client retries
│   └── Unavailable      502, 503, 504: the server is unavailable for longer than the client retries
├── ConnectionFailed     no response for longer than the client retries; also a ConnectionError
├── UnexpectedReply      the response does not follow this API: it is not from an Assay server
├── WaitTimeout          `wait` timed out while the job keeps running; also a TimeoutError
└── JobFailed            the job ended as `failed` or `cancelled`; `job` is its last view
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.model import JobView


class AssayError(Exception):
    """An Assay call failed."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ApiError(AssayError):
    """The server answered with an error."""

    def __init__(
        self, status: int, title: str = "", detail: str = "", field: str = "", retry_after_s: float | None = None
    ) -> None:
        self.status, self.title, self.detail, self.field = status, title, detail, field
        self.retry_after_s = retry_after_s
        said = detail or title or (type(self).__doc__ or "").strip()
        where = f" (field {field})" if field and field not in said else ""
        super().__init__(f"{said}{where} [HTTP {status}]")


class InvalidRequest(ApiError):
    """The request breaks a rule."""


class Unauthorized(ApiError):
    """The token is missing or wrong: set ASSAY_TOKEN."""


class NotFound(ApiError):
    """The job does not exist, or it has expired."""


class Conflict(ApiError):
    """The current state of the job forbids this request."""


class TooLarge(ApiError):
    """The request is larger than the server accepts."""


class QuotaExceeded(ApiError):
    """The quota is exceeded: retry later, or ask for a higher quota."""


class Unavailable(ApiError):
    """The server cannot answer now."""


class ConnectionFailed(AssayError, ConnectionError):
    """The server does not answer."""


class UnexpectedReply(AssayError):
    """The response is not from an Assay server: check the URL, and any proxy between this client and the server."""


class WaitTimeout(AssayError, TimeoutError):
    """The wait timed out; the job keeps running."""

    def __init__(self, job: JobView, timeout_s: float) -> None:
        self.job = job
        super().__init__(
            f"Job {job.id} is {job.state} after {timeout_s:g} s ({job.settled} of {job.total} items). It keeps "
            f"running: wait for it again with client.job({job.id!r}).wait() or `assay watch {job.id}`."
        )


class JobFailed(AssayError):
    """The job failed."""

    def __init__(self, job: JobView) -> None:
        self.job = job
        because = f": {job.reason}" if job.reason else ""
        super().__init__(f"Job {job.id} ended as {job.state}{because} ({job.ok} ok, {job.failed} failed).")


BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    415: InvalidRequest,
    422: InvalidRequest,
    429: QuotaExceeded,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
