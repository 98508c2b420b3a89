"""Retries while Redis is unavailable, so that an outage does not lose the results of a worker."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Error codes of a Redis that is reachable but temporarily cannot run the command.
TRANSIENT_ERRORS = ("MISCONF", "LOADING", "OOM", "READONLY", "BUSY ", "NOSCRIPT", "MASTERDOWN")
#: Seconds between two attempts.
RETRY_S = 0.5


def retry_redis(call: Callable[[], T]) -> T:
    """Return the result of `call`, retrying as long as Redis is unavailable. `call` must be idempotent."""
    has_warned = False
    while True:
        try:
            return call()
        except (ConnectionError, TimeoutError) as error:
            reason: Exception = error
        except ResponseError as error:  # an error inside a script has a prefix, so search the whole text
            if not any(word in str(error) for word in TRANSIENT_ERRORS):
                raise
            reason = error
        if not has_warned:
            log.warning("this worker waits and retries: %s", reason)
            has_warned = True
        time.sleep(RETRY_S)
