"""Connections to Redis, and what its errors mean for a person."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from redis import Redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks.errors import RedisRefused, RedisUnavailable

log = logging.getLogger(__name__)

#: Seconds a command may take. Scripts and pages are sized to stay far below.
COMMAND_TIMEOUT_S = 5.0
#: The same for one who only looks.
LOOK_TIMEOUT_S = 1.0
#: Connections of one process at most. Each thread that waits for a job holds one, and there may be 2,048 threads;
#: redis-py stops at 100 unless told.
MOST_CONNECTIONS = 4096
#: Seconds between two tries while Redis is away.
RETRY_S = 1.0
#: Seconds between two lines that say so.
REPEAT_MESSAGE_S = 10.0


def connect(url: str) -> Redis:
    """A client with its pool; it connects on first use, and again after a fork or a lost connection."""
    return Redis.from_url(
        url,
        decode_responses=True,
        max_connections=MOST_CONNECTIONS,
        socket_timeout=COMMAND_TIMEOUT_S,
        socket_connect_timeout=COMMAND_TIMEOUT_S,
        socket_keepalive=True,
        health_check_interval=30,
    )


def connect_once(url: str) -> Redis:
    """A client for those who look and do not wait: one short try, whose failure is an answer too."""
    return Redis.from_url(
        url,
        decode_responses=True,
        max_connections=MOST_CONNECTIONS,
        socket_timeout=LOOK_TIMEOUT_S,
        socket_connect_timeout=LOOK_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def redact(url: str) -> str:
    """The URL as it may be shown: without its password."""
    parts = urlsplit(url)
    netloc = parts.netloc.replace(f":{parts.password}@", ":***@", 1) if parts.password is not None else parts.netloc
    return urlunsplit(parts._replace(netloc=netloc, query="***" if parts.query else ""))


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn redis-py's errors into ours, each with a sentence that says what to do."""
    try:
        yield
    except redis_errors.RedisError as error:
        raise explain(error, redact(url)) from error


def explain(error: redis_errors.RedisError, url: str) -> RedisUnavailable | RedisRefused:
    text = str(error)
    if isinstance(error, redis_errors.AuthenticationError) or text.startswith(("NOAUTH", "WRONGPASS")):
        return RedisRefused(
            f"Redis at {url} asks for a password, or refuses the one given: "
            "write it into the URL, redis://:PASSWORD@host:port/0."
        )
    if "DB index is out of range" in text:
        return RedisRefused(f"Redis at {url} has no database of that number.")
    if isinstance(error, redis_errors.NoPermissionError):
        return RedisRefused(f"Redis at {url} does not let this user do what Assay needs ({text}).")
    if "MISCONF" in text:  # inside a script it comes with a prefix
        return RedisUnavailable(
            f"Redis at {url} refuses writes because it cannot save them; its disk is probably full. "
            f"Free space there: it accepts writes again by itself. Redis says: {text}"
        )
    if isinstance(error, redis_errors.OutOfMemoryError):
        return RedisUnavailable(f"Redis at {url} is full: raise its maxmemory, or let old jobs expire sooner.")
    if isinstance(error, redis_errors.BusyLoadingError):
        return RedisUnavailable(f"Redis at {url} is still loading its data.")
    if isinstance(error, redis_errors.ReadOnlyError):
        return RedisUnavailable(f"Redis at {url} is a read-only replica: give the URL of the primary.")
    return RedisUnavailable(f"Redis at {url} does not answer ({text}).")


def wait_for_redis(url: str, pause: Callable[[float], bool]) -> bool:
    """Return True once Redis answers. Says why while it waits; raises RedisRefused where waiting is no use.

    `pause(seconds)` waits and returns True when the process should stop; then the answer is False.
    """
    waited_s, announced = 0.0, ""
    with connect(url) as client:
        while True:
            try:
                with explained(url):
                    client.ping()
                if announced:
                    log.info("Redis at %s answers", redact(url))
                return True
            except RedisUnavailable as error:
                if str(error) != announced or waited_s >= REPEAT_MESSAGE_S:
                    log.warning("%s Waiting for it.", error)
                    waited_s, announced = 0.0, str(error)
            if pause(RETRY_S):
                return False
            waited_s += RETRY_S


def eviction_warning(url: str) -> str | None:
    """A sentence when the state Redis may throw keys away; None when it does not, or does not say."""
    with connect(url) as client:
        try:
            policy = client.config_get("maxmemory*")
        except redis_errors.ResponseError:  # managed Redis often forbids CONFIG
            return None
    if policy.get("maxmemory-policy", "noeviction") == "noeviction" or policy.get("maxmemory") == "0":
        return None
    return (
        f"Redis at {redact(url)} holds Assay's state but evicts keys ({policy['maxmemory-policy']}): "
        "set its maxmemory-policy to noeviction, and give the cache a Redis of its own (ASSAY_CACHE_URL)."
    )
