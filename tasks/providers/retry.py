"""Retry policy of API calls: classifies a failed try and computes the backoff. Pure; `workers/providers` applies it."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal

Kind = Literal["refused", "limited", "exhausted", "server", "connection", "timeout", "lesson"]
#: Request feature that an endpoint rejected, and that a retry leaves out: a JSON schema; `max_tokens`, which some
#: models accept only by its newer name; token log-probabilities; a temperature, which is fixed in reasoning models.
Lesson = Literal["no_schema", "no_max_tokens", "no_logprobs", "no_temperature"]

#: Mean seconds of the first backoff, which doubles with every try, and the maximum backoff.
BASE_S, MOST_S = 0.5, 30.0
#: Maximum times that a call is repeated after rate-limit replies (429). A rate limit is not a failure and does not
#: count as a retry; a burst of 429s would use up the retries at once.
MOST_LIMITED = 50
#: Maximum seconds of a wait that a header can request.
MOST_RETRY_AFTER_S = 3600.0
#: Minimum seconds without calls after the API reports that the account's quota is exhausted.
EXHAUSTED_S = 300.0

_RETRIED = (408, 409, 425, 500, 502, 503, 504)
_EXHAUSTED = ("insufficient_quota", "billing_hard_limit_reached", "insufficient_balance", "credit_balance_too_low")
_SCHEMA = re.compile(r"response_format|json_schema|guided|structured.?output|grammar", re.IGNORECASE)
_TEMPERATURE = re.compile(r"temperature\W.*(?:not support|only the default)|unsupported.*temperature", re.IGNORECASE)
#: The schema itself is invalid; the endpoint does support schemas.
_INVALID = re.compile(r"invalid.?(json.?)?schema", re.IGNORECASE)
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed try of an API call."""

    kind: Kind
    message: str
    """The API's own message, without secrets."""
    status: int = 0
    retry_after_s: float = 0.0
    lesson: Lesson | None = None

    @property
    def is_retried(self) -> bool:
        return self.kind in ("limited", "server", "connection", "timeout")

    @property
    def is_of_the_api(self) -> bool:
        """Return whether the failure counts towards opening the circuit."""
        return self.kind in ("server", "connection", "timeout")


def classify(
    status: int, code: str, message: str, headers: Mapping[str, str], body: Mapping[str, object] | None = None
) -> Failure:
    """Classify an error reply by its status, error code and message; `body` is the body of the request."""
    wait_s = retry_after_s(headers)
    if status in (402, 429) and (status == 402 or code in _EXHAUSTED):
        return Failure("exhausted", message, status, max(wait_s, EXHAUSTED_S))
    if status == 429:
        return Failure("limited", message, status, wait_s)
    if status in _RETRIED or status >= 500:
        return Failure("server", message, status, wait_s)
    lesson = _lesson(message, body or {}) if status in (400, 415, 422) else None
    return Failure("lesson" if lesson else "refused", message, status, lesson=lesson)


def _lesson(message: str, body: Mapping[str, object]) -> Lesson | None:
    if "response_format" in body and _SCHEMA.search(message) and not _INVALID.search(message):
        return "no_schema"
    if "max_tokens" in body and "max_completion_tokens" in message:
        return "no_max_tokens"
    if "logprobs" in body and "logprobs" in message:
        return "no_logprobs"
    if "temperature" in body and _TEMPERATURE.search(message):
        return "no_temperature"
    return None


def backoff_s(tries: int, draw: float | None = None) -> float:
    """Return the seconds to back off before the next try, with full jitter; `draw`, in [0, 1), replaces the random
    number."""
    longest = min(MOST_S, 2 * BASE_S * 2.0 ** (tries - 1))
    return longest * (random.random() if draw is None else draw)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Parse the seconds to wait from `retry-after-ms` or `Retry-After` (seconds, or a date); 0 if neither is given."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return _bounded(float(milliseconds) / 1000)
        text = headers.get("retry-after", "").strip()
        if not text:
            return 0.0
        try:
            return _bounded(float(text))
        except ValueError:
            # The date is on the API's own clock, which the Date header shows.
            now = parsedate_to_datetime(headers["date"])
            return _bounded((parsedate_to_datetime(text) - now).total_seconds())
    except (KeyError, ValueError, TypeError):
        return 0.0


def exhausted_for_s(headers: Mapping[str, str]) -> float:
    """Return the seconds until the rate limit resets, if `x-ratelimit-remaining-*` is 0 for either unit; else 0."""
    longest = 0.0
    for unit in ("requests", "tokens"):
        if headers.get(f"x-ratelimit-remaining-{unit}", "").strip() in ("0", "0.0"):
            longest = max(longest, duration_s(headers.get(f"x-ratelimit-reset-{unit}", "")))
    return longest


def duration_s(text: str) -> float:
    """Parse a duration such as `1h2m3s`, `6m0s`, `20ms` or a plain number of seconds; 0 for an invalid text."""
    text = text.strip()
    try:
        return _bounded(float(text))
    except ValueError:
        pass
    match = _DURATION.fullmatch(text)
    if not text or not match:
        return 0.0
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    return _bounded(hours * 3600 + minutes * 60 + seconds + milliseconds / 1000)


def _bounded(seconds: float) -> float:
    # Some APIs send a time in seconds since 1970 instead of a duration; it is ignored.
    return min(seconds, MOST_RETRY_AFTER_S) if 0 < seconds < 1e8 else 0.0
