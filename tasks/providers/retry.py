"""What to do after a failed try of an API call: a decision by the type of failure. Pure; carried out elsewhere."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal

Kind = Literal["refused", "limited", "exhausted", "server", "connection", "timeout", "lesson"]
#: What an endpoint may refuse and a call can do without: a JSON schema; `max_tokens`, which some models know by its
#: newer name only; probabilities of tokens; a temperature, which models that think have of their own.
Lesson = Literal["no_schema", "no_max_tokens", "no_logprobs", "no_temperature"]

#: Seconds of the first pause on average, doubled for every try, and the longest.
BASE_S, MOST_S = 0.5, 30.0
#: How often a call is begun again because the API asked to slow down. That is no failure, and costs no retry; a storm
#: of 429s would use those up at once.
MOST_LIMITED = 50
#: Seconds nobody is asked to wait beyond, whatever a header says.
MOST_RETRY_AFTER_S = 3600.0
#: Seconds the API is let alone when its account is empty.
EXHAUSTED_S = 300.0

_RETRIED = (408, 409, 425, 500, 502, 503, 504)
_EXHAUSTED = ("insufficient_quota", "billing_hard_limit_reached", "insufficient_balance", "credit_balance_too_low")
_SCHEMA = re.compile(r"response_format|json_schema|guided|structured.?output|grammar", re.IGNORECASE)
_TEMPERATURE = re.compile(r"temperature\W.*(?:not support|only the default)|unsupported.*temperature", re.IGNORECASE)
#: The schema is wrong, not the asking for one.
_INVALID = re.compile(r"invalid.?(json.?)?schema", re.IGNORECASE)
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed try."""

    kind: Kind
    message: str
    """In the API's own words, without secrets."""
    status: int = 0
    retry_after_s: float = 0.0
    lesson: Lesson | None = None

    @property
    def is_retried(self) -> bool:
        return self.kind in ("limited", "server", "connection", "timeout")

    @property
    def is_of_the_api(self) -> bool:
        """It counts towards the circuit."""
        return self.kind in ("server", "connection", "timeout")


def classify(
    status: int, code: str, message: str, headers: Mapping[str, str], body: Mapping[str, object] | None = None
) -> Failure:
    """A failure from the status of an answer to a request with this body."""
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
    """A pause with full jitter before the next try; `draw`, in [0, 1), stands for chance."""
    longest = min(MOST_S, 2 * BASE_S * 2.0 ** (tries - 1))
    return longest * (random.random() if draw is None else draw)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """What `retry-after-ms` and `Retry-After` (seconds, or a date) ask for; 0 for nothing."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return _bounded(float(milliseconds) / 1000)
        text = headers.get("retry-after", "").strip()
        if not text:
            return 0.0
        try:
            return _bounded(float(text))
        except ValueError:
            # The API's own clock says when; its Date header, what it is now.
            now = parsedate_to_datetime(headers["date"])
            return _bounded((parsedate_to_datetime(text) - now).total_seconds())
    except (KeyError, ValueError, TypeError):
        return 0.0


def exhausted_for_s(headers: Mapping[str, str]) -> float:
    """Seconds until the API has anything left, when `x-ratelimit-remaining-*` say that it has not; else 0."""
    longest = 0.0
    for what in ("requests", "tokens"):
        if headers.get(f"x-ratelimit-remaining-{what}", "").strip() in ("0", "0.0"):
            longest = max(longest, duration_s(headers.get(f"x-ratelimit-reset-{what}", "")))
    return longest


def duration_s(text: str) -> float:
    """Seconds of `1h2m3s`, `6m0s`, `20ms` or a plain number; 0 for what is none of these."""
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
    # Some APIs give the time of day instead, in seconds since 1970: no span anybody waits for.
    return min(seconds, MOST_RETRY_AFTER_S) if 0 < seconds < 1e8 else 0.0
