"""The one decision whether a failed item is tried again, as a pure function of its error and its attempts."""

from dataclasses import dataclass

from tasks.jobs.model import ItemError

#: Times an item is tried if its failure may pass, and the pause before the second try; the pause doubles each time.
MOST_ATTEMPTS = 3
FIRST_RETRY_S = 0.5
#: Times an item is begun while its API's circuit is open; the pauses of an open circuit add up to some minutes.
MOST_RESTS = 7


@dataclass(frozen=True, slots=True)
class Retry:
    """Back off: the item becomes pending again after `delay_s`."""

    delay_s: float
    rests: bool = False
    """Whether the whole stage of the job pauses for the delay, not only this item."""


def retry_of(error: ItemError | None, attempts: int) -> Retry | None:
    """Return how an item that failed in try number `attempts` is tried again; None if its outcome is final."""
    if error is None or not error.retryable:
        return None
    if error.retry_after_s:
        return Retry(error.retry_after_s, rests=True) if attempts < MOST_RESTS else None
    return Retry(FIRST_RETRY_S * 2 ** (attempts - 1)) if attempts < MOST_ATTEMPTS else None
