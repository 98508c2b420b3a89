"""Waiting for Redis or the storage to come back: a worker does not lose its work because they are away."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from tasks.errors import StorageUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

#: What Redis answers when it is there but cannot do it now.
TRANSIENT_ERRORS = ("MISCONF", "LOADING", "OOM", "READONLY", "BUSY ", "NOSCRIPT", "MASTERDOWN")
#: Seconds between two tries.
RETRY_S = 0.5


def retry_redis(call: Callable[[], T]) -> T:
    """The call's answer, however long Redis or the storage is away. Every call made so may be repeated."""
    told = False
    while True:
        try:
            return call()
        except (ConnectionError, TimeoutError, StorageUnavailable) as error:
            reason: Exception = error
        except ResponseError as error:  # inside a script it comes with a prefix
            if not any(word in str(error) for word in TRANSIENT_ERRORS):
                raise
            reason = error
        if not told:
            log.warning("this worker waits: %s", reason)
            told = True
        time.sleep(RETRY_S)
