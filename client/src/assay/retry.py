"""Retry policy with exponential backoff and jitter. The decision is a pure function; flows apply it."""

from __future__ import annotations

import email.utils
import random
import time
from dataclasses import dataclass
from typing import Callable, Union

from assay.errors import BY_STATUS, ApiError, AssayError, ConnectionFailed
from assay.steps import ConnectionLost, Reply

#: Status codes after which the same request may succeed when it is retried.
RETRYABLE_STATUSES = (429, 502, 503, 504)
Failure = Union[ConnectionLost, Reply]


@dataclass(frozen=True)
class Retry:
    """Limits on retries after a lost connection or a response of a busy server. Any progress resets the time."""

    give_up_after_s: float = 120.0
    first_delay_s: float = 0.25
    max_delay_s: float = 15.0

    def delay_s(self, attempt: int, elapsed_s: float, asked_s: float | None, jitter: float) -> float | None:
        """Return the seconds before the next attempt, or None to give up.

        `jitter` in [0, 1) spreads the retries of clients that failed at the same moment.
        """
        delay = min(self.max_delay_s, self.first_delay_s * 2.0 ** min(attempt, 30)) * (0.5 + jitter / 2)
        delay = max(delay, asked_s or 0.0)
        return delay if elapsed_s + delay <= self.give_up_after_s else None


class Backoff:
    """Attempts and elapsed time of an exchange that is retried; `reset` after progress."""

    def __init__(self, retry: Retry, clock: Callable[[], float] = time.monotonic) -> None:
        self._retry, self._clock = retry, clock
        self.reset()

    def reset(self) -> None:
        self._attempt, self._since = 0, self._clock()

    def delay_after(self, failure: Failure, repeatable: bool = True) -> float:
        """Return the seconds to pause before the next attempt.

        Raise an error if the failure is permanent, if the call is not idempotent, or if the retry limit is reached.
        """
        elapsed_s = self._clock() - self._since
        asked_s = None
        if isinstance(failure, Reply):
            if failure.status not in RETRYABLE_STATUSES:
                raise error_of(failure)
            asked_s = retry_after_s(failure)
        elif failure.sent and not repeatable:
            raise ConnectionFailed(
                f"The connection was lost ({_cause_text(failure)}) after the request was sent: it may have been "
                "carried out. It is not retried, as it could run twice: check the job before you try again."
            ) from failure.cause
        delay = self._retry.delay_s(self._attempt, elapsed_s, asked_s, random.random())
        if delay is None:
            raise error_of(failure, elapsed_s) from getattr(failure, "cause", None)
        self._attempt += 1
        return delay


def retry_after_s(reply: Reply) -> float | None:
    """Parse the Retry-After header, given in seconds or as a date; None if it is missing or malformed."""
    asked = reply.headers.get("retry-after", "").strip()
    if asked.isdigit():
        return float(asked)
    date = email.utils.parsedate_tz(asked) if asked else None
    return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else None


def error_of(failure: Failure, tried_s: float = 0.0) -> AssayError:
    if isinstance(failure, ConnectionLost):
        tried = f" The client retried for {tried_s:.0f} s." if tried_s >= 1 else ""
        return ConnectionFailed(f"The server does not answer ({_cause_text(failure)}).{tried}")
    problem: dict[str, object] = {}
    if "json" in failure.media_type:
        data = failure.json()
        problem = data if isinstance(data, dict) else {}
    elif 300 <= failure.status < 400:
        location = failure.headers.get("location")
        problem["detail"] = f"The server redirects to {location}: if that is the right URL, set ASSAY_URL to it."
    title, detail, field = (str(problem.get(name) or "") for name in ("title", "detail", "field"))
    kind = BY_STATUS.get(failure.status, ApiError)
    return kind(failure.status, title, detail, field, retry_after_s(failure))


def _cause_text(failure: ConnectionLost) -> str:
    return str(failure.cause) or type(failure.cause).__name__
