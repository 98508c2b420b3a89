"""HTTP client of Assay: `Assay(url, token)` blocks, `AsyncAssay` is for asyncio. Imports no module of the server."""

from assay.async_client import AsyncAssay, AsyncJob
from assay.client import Assay, Job
from assay.errors import (
    ApiError,
    AssayError,
    Conflict,
    ConnectionFailed,
    InvalidRequest,
    JobFailed,
    NotFound,
    QuotaExceeded,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedReply,
    WaitTimeout,
)
from assay.model import Calibration, ItemError, JobView, Row, Scores
from assay.retry import Retry
from assay.version import VERSION as __version__

__all__ = [
    "ApiError",
    "Assay",
    "AssayError",
    "AsyncAssay",
    "AsyncJob",
    "Calibration",
    "Conflict",
    "ConnectionFailed",
    "InvalidRequest",
    "ItemError",
    "Job",
    "JobFailed",
    "JobView",
    "NotFound",
    "QuotaExceeded",
    "Retry",
    "Row",
    "Scores",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnexpectedReply",
    "WaitTimeout",
    "__version__",
]
