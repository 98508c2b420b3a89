"""What can go wrong, as one tree. A class's docstring is its default message; its place says whose turn it is.

AssayError
├── ApiError             the server answered with an error: status, title, detail, field
│   ├── InvalidRequest   400, 415, 422: the request breaks a rule; `field` says where
│   ├── Unauthorized     401, 403: no token, or not the right one
│   ├── NotFound         404: no such job, or it has expired
│   ├── Conflict         409: the job's state, or an earlier request with this key, forbids it
│   ├── TooLarge         413: more than the server takes in one request
│   ├── QuotaExceeded    429: over the quota for longer than the client retries
│   └── Unavailable      502, 503, 504: away for longer than the client retries
├── ConnectionFailed     no answer for longer than the client retries; also a ConnectionError
├── UnexpectedReply      something answered that does not speak this API
├── WaitTimeout          the time given to `wait` is up, the job goes on; also a TimeoutError
└── JobFailed            the job ended as `failed` or `cancelled`; `job` is its last view
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.model import JobView


class AssayError(Exception):
    """Something went wrong with Assay."""

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
    """The server wants a token, or another one."""


class NotFound(ApiError):
    """There is no such job; it may have expired."""


class Conflict(ApiError):
    """The state of things forbids this."""


class TooLarge(ApiError):
    """This is more than the server takes in one request."""


class QuotaExceeded(ApiError):
    """This is over the quota."""


class Unavailable(ApiError):
    """The server cannot answer now."""


class ConnectionFailed(AssayError, ConnectionError):
    """The server does not answer."""


class UnexpectedReply(AssayError):
    """What answered does not speak this API: check the URL, and what stands before the server."""


class WaitTimeout(AssayError, TimeoutError):
    """The time to wait is up; the job goes on."""

    def __init__(self, job: JobView, timeout_s: float) -> None:
        self.job = job
        super().__init__(
            f"Job {job.id} is {job.state} after {timeout_s:g} s ({job.settled} of {job.total} items). It goes on: "
            f"come back with client.job({job.id!r}).wait() or `assay watch {job.id}`."
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
