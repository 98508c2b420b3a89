"""Retry policy of items: decides whether a failed item is retried, as a pure function of its error and its attempts."""

from dataclasses import dataclass

from tasks.jobs.model import ItemError

#: Maximum number of attempts of an item with a retryable error.
MOST_ATTEMPTS = 3
#: Delay before the second attempt, in seconds; it doubles with each attempt (exponential backoff).
FIRST_RETRY_S = 0.5
#: Maximum number of attempts while the circuit breaker of an API is open; its delays add up to some minutes.
MOST_RESTS = 7


@dataclass(frozen=True, slots=True)
class Retry:
    """Back off: the item becomes pending again after `delay_s`."""

    delay_s: float
    rests: bool = False
    """Whether the whole stage of the job is suspended for the delay, not only this item."""


def retry_of(error: ItemError | None, attempts: int, most_rests: int = MOST_RESTS) -> Retry | None:
    """Return the retry of an item that failed in attempt number `attempts`; None if its outcome is final. `most_rests`:
    maximum number of attempts while a circuit breaker is open."""
    if error is None or not error.retryable:
        return None
    if error.retry_after_s:
        return Retry(error.retry_after_s, rests=True) if attempts < most_rests else None
    return Retry(FIRST_RETRY_S * 2 ** (attempts - 1)) if attempts < MOST_ATTEMPTS else None
