"""Leases on policy servers: a server is used by at most one process at a time, over every host.

The reference server serialises its clients and answers no health check meanwhile: two owners would only wait for each
other, and neither could distinguish a slow server from a wedged server.
"""

import logging
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import RedisError

from config.settings import LOOPBACK
from tasks import lua

log = logging.getLogger(__name__)

_SCRIPTS = Path(__file__).with_name("scripts")

#: Seconds after which a lease expires unless its worker renews it.
LEASE_S = 10.0


class Owner(Protocol):
    """Ownership of servers, which a process acquires before it connects. Called from the pool's threads: must neither
    raise nor take long."""

    def try_take(self, url: str) -> bool:
        """Acquire or renew the ownership of a server. The pool calls this every few seconds (`pool.TEND_S`), so that a
        lease can be renewed. Return False when another process owns the server, or the owner is unknown."""

    def give_back(self, url: str) -> None:
        """Release the server, so that another process may own it."""


class Alone:
    """Owner without leases, for a process that does not share its servers."""

    def try_take(self, url: str) -> bool:  # noqa: ARG002
        return True

    def give_back(self, url: str) -> None:
        """Do nothing: no other process uses the server."""


class Leases:
    """Owner through leases in the state Redis, for processes on every host. During an outage of Redis the held leases
    stay valid: no other process can acquire a lease then."""

    def __init__(self, state: Redis, worker: str, node: str) -> None:
        self._worker, self._node = worker, node
        self._take = state.register_script(lua.load(_SCRIPTS / "lease_server.lua"))
        self._give_back = state.register_script(lua.load(_SCRIPTS / "release_server.lua"))
        self._held: set[str] = set()

    def try_take(self, url: str) -> bool:
        try:
            is_ours = bool(self._take(args=[self._server(url), self._worker, int(1000 * LEASE_S)]))
        except RedisError as error:
            log.debug("cannot renew or acquire the lease on %s: %s", url, error)
            return url in self._held
        (self._held.add if is_ours else self._held.discard)(url)
        return is_ours

    def give_back(self, url: str) -> None:
        self._held.discard(url)
        try:
            self._give_back(args=[self._server(url), self._worker])
        except RedisError as error:  # the lease expires by itself
            log.debug("cannot release the lease on %s: %s", url, error)

    def _server(self, url: str) -> str:
        """Return the server's name in Redis: with the node for a loopback address, which differs on every host."""
        return f"{self._node}|{url}" if urlsplit(url).hostname in LOOPBACK else url
