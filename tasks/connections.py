"""Connections to Redis, and translation of its errors to Assay's errors with a remedy."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import redis.asyncio as asyncio_redis
from redis import Redis
from redis import exceptions as redis_errors
from redis.asyncio import sentinel as asyncio_sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from config.redis_urls import SentinelUrl, is_sentinel, redact
from tasks.errors import RedisRefused, RedisUnavailable

__all__ = ["connect", "connect_for_checks", "create_async_pool", "redact", "translate_redis_errors", "wait_for_redis"]

log = logging.getLogger(__name__)

#: Timeout of a command in seconds. Scripts and pages are sized to stay far below it.
COMMAND_TIMEOUT_S = 5.0
#: Timeout of a command in health and status checks, in seconds.
CHECK_TIMEOUT_S = 1.0
#: Maximum connections of a process. Each thread that waits for a job holds a connection, and a process may have 2,048
#: threads; redis-py's default limit is 100.
MOST_CONNECTIONS = 4096
#: Seconds between two attempts while Redis is unavailable.
RETRY_S = 1.0
#: Seconds between two log lines while Redis is unavailable.
REPEAT_MESSAGE_S = 10.0


def connect(url: str) -> Redis:
    """Return a client with a connection pool; it connects on first use, and again after a fork or a lost connection."""
    return _client(
        url,
        socket_timeout=COMMAND_TIMEOUT_S,
        socket_connect_timeout=COMMAND_TIMEOUT_S,
        socket_keepalive=True,
        health_check_interval=30,
    )


def connect_for_checks(url: str) -> Redis:
    """Return a client for health and status checks: a short timeout and no retries, as a failure is an answer too."""
    return _client(
        url,
        socket_timeout=CHECK_TIMEOUT_S,
        socket_connect_timeout=CHECK_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def _client(url: str, **options: Any) -> Redis:
    options |= {"decode_responses": True, "max_connections": MOST_CONNECTIONS}
    if not is_sentinel(url):
        return Redis.from_url(url, **options)
    parsed = SentinelUrl.parse(url)
    timeout = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout")}
    sentinel = Sentinel(parsed.sentinels, sentinel_kwargs=timeout | parsed.sentinel_options())  # type: ignore[no-untyped-call]
    return cast(Redis, sentinel.master_for(parsed.service, **parsed.redis_options(), **options))  # type: ignore[no-untyped-call]


def create_async_pool(url: str, **options: Any) -> asyncio_redis.BlockingConnectionPool:
    """Return a pool of an asyncio client, in which a command waits for a free connection."""
    if not is_sentinel(url):
        return asyncio_redis.BlockingConnectionPool.from_url(url, **options)
    parsed = SentinelUrl.parse(url)
    timeout = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout")}
    manager = asyncio_sentinel.Sentinel(parsed.sentinels, sentinel_kwargs=timeout | parsed.sentinel_options())  # type: ignore[no-untyped-call]
    redis_options = parsed.redis_options()
    has_tls = redis_options.pop("ssl", False)
    return asyncio_redis.BlockingConnectionPool(
        connection_class=asyncio_sentinel.SentinelManagedSSLConnection
        if has_tls
        else asyncio_sentinel.SentinelManagedConnection,
        # Finds the primary for each new connection; it opens none itself.
        connection_pool=asyncio_sentinel.SentinelConnectionPool(parsed.service, manager),  # type: ignore[no-untyped-call]
        **redis_options,
        **options,
    )


@contextmanager
def translate_redis_errors(url: str) -> Iterator[None]:
    """Translate redis-py's errors to RedisUnavailable or RedisRefused, with cause and remedy."""
    try:
        yield
    except redis_errors.RedisError as error:
        raise translate_redis_error(error, redact(url)) from error


def translate_redis_error(error: redis_errors.RedisError, url: str) -> RedisUnavailable | RedisRefused:
    text = str(error)
    if isinstance(error, MasterNotFoundError):
        if "AuthenticationError" in text:
            return RedisRefused(
                f"The Sentinels at {url} require a password, or refuse the given password: "
                "add ?sentinel_password=PASSWORD to the URL."
            )
        # The rest of the text describes the connection objects of redis-py.
        return RedisUnavailable(f"The Sentinels at {url} name no primary ({text.partition(' : ')[0]}).")
    if isinstance(error, redis_errors.AuthenticationError) or text.startswith(("NOAUTH", "WRONGPASS")):
        return RedisRefused(
            f"Redis at {url} requires a password, or refuses the given password: "
            "write it into the URL, redis://:PASSWORD@host:port/0."
        )
    if "DB index is out of range" in text:
        return RedisRefused(f"Redis at {url} does not have this database: change the number at the end of the URL.")
    if isinstance(error, redis_errors.NoPermissionError):
        return RedisRefused(f"Redis at {url} denies this user a command that Assay needs: extend its ACL ({text}).")
    if "MISCONF" in text:  # errors inside a script have a prefix
        return RedisUnavailable(
            f"Redis at {url} refuses writes because it cannot save them; its disk is probably full. "
            f"Free disk space on its host: it then accepts writes again without a restart. Redis reports: {text}"
        )
    if isinstance(error, redis_errors.OutOfMemoryError) or "OOM " in text:
        return RedisUnavailable(
            f"Redis at {url} is full: raise its maxmemory, delete jobs (`assay cancel --purge`), or let them expire "
            "sooner."
        )
    if isinstance(error, redis_errors.BusyLoadingError):
        return RedisUnavailable(f"Redis at {url} is still loading its data: try again in a moment.")
    if isinstance(error, redis_errors.ReadOnlyError):
        return RedisUnavailable(f"Redis at {url} is a read-only replica: give the URL of the primary.")
    return RedisUnavailable(f"Redis at {url} does not answer ({text}).")


def wait_for_redis(url: str, pause: Callable[[float], bool]) -> bool:
    """Wait until Redis answers, and return True. Logs the cause while it waits; raises RedisRefused at once.

    `pause(seconds)` waits and returns True when the process should stop; then this function returns False.
    """
    waited_s, announced = 0.0, ""
    with connect(url) as client:
        while True:
            try:
                with translate_redis_errors(url):
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
    """Return a warning when the state Redis may evict keys; None when it does not, or hides its configuration."""
    with connect(url) as client:
        try:
            policy = client.config_get("maxmemory*")
        except redis_errors.ResponseError:  # managed Redis often forbids CONFIG
            return None
    if policy.get("maxmemory-policy", "noeviction") == "noeviction" or policy.get("maxmemory") == "0":
        return None
    return (
        f"Redis at {redact(url)} holds Assay's state but evicts keys ({policy['maxmemory-policy']}): "
        "set its maxmemory-policy to noeviction, and use a separate Redis for the cache (ASSAY_CACHE_URL)."
    )
