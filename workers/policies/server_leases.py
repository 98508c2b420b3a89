"""Who may talk to a server: one process at a time, of all processes of all hosts.

The reference server serialises its clients and answers no health check meanwhile: two owners would only wait for each
other, and neither could tell a slow server from a wedged one.
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

#: Seconds that a server stays a worker's which has not said so again.
LEASE_S = 10.0


class Owner(Protocol):
    """What a process asks before it connects. Called from the pool's threads: must neither raise nor take long."""

    def try_take(self, url: str) -> bool:
        """Become the server's owner, or remain it: asked again every few seconds (`pool.TEND_S`), so that a lease can
        be renewed. False when another process owns it, or it is not known who does."""

    def give_back(self, url: str) -> None:
        """Another process may have it now."""


class Alone:
    """For a process that shares its servers with nobody."""

    def try_take(self, url: str) -> bool:  # noqa: ARG002
        return True

    def give_back(self, url: str) -> None:
        """Nobody else wants it."""


class Leases:
    """By leases in the state Redis, for the processes of all hosts. While Redis is away, what is held is kept: nobody
    else can take it then."""

    def __init__(self, state: Redis, worker: str, node: str) -> None:
        self._worker, self._node = worker, node
        self._take = state.register_script(lua.load(_SCRIPTS / "lease_server.lua"))
        self._give_back = state.register_script(lua.load(_SCRIPTS / "release_server.lua"))
        self._held: set[str] = set()

    def try_take(self, url: str) -> bool:
        try:
            is_ours = bool(self._take(args=[self._server(url), self._worker, int(1000 * LEASE_S)]))
        except RedisError as error:
            log.debug("cannot tell who owns %s: %s", url, error)
            return url in self._held
        (self._held.add if is_ours else self._held.discard)(url)
        return is_ours

    def give_back(self, url: str) -> None:
        self._held.discard(url)
        try:
            self._give_back(args=[self._server(url), self._worker])
        except RedisError as error:  # it lapses by itself
            log.debug("cannot give %s back: %s", url, error)

    def _server(self, url: str) -> str:
        """A loopback address means another server on every host."""
        return f"{self._node}|{url}" if urlsplit(url).hostname in LOOPBACK else url
