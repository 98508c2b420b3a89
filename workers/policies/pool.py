"""Pool of a process's policy servers: a keeper thread per server connects it, tends it and reconnects it.

Only the keeper thread waits for a connection attempt. Callers wait for a free server, up to a deadline, so a server
that is down, or appears later, delays no caller. At most one request is in flight per server.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tasks.episodes.policy_servers import PolicyServer
from tasks.errors import AssayError, PolicyUnavailable
from workers.policies.address import Address
from workers.policies.connection import FIRST_BACKOFF_S, Connection, Limits, Reply, frame_of
from workers.policies.server_leases import Alone, Owner
from workers.policies.server_status import State, status_of

log = logging.getLogger(__name__)

#: Seconds between two checks of an idle connection, and of a server's lease.
TEND_S = 2.0
#: Seconds between two checks of a waiting caller whether the server is still connected.
LOOK_S = 0.25


@dataclass(slots=True, eq=False)
class _Server:
    connection: Connection
    state: State = "away"
    away_since: float = field(default_factory=time.monotonic)
    episodes: int = 0
    """Episodes that run with this server."""
    is_owned: bool = False
    wake: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return self.connection.address.url

    @property
    def is_there(self) -> bool:
        return self.state in ("free", "busy")

    def leave(self, state: State = "away") -> None:
        if self.is_there:
            self.away_since = time.monotonic()
        self.state = state


@dataclass(slots=True, eq=False)
class _Waiter:
    url: str
    """URL of the requested server; empty: any server."""
    server: _Server | None = None
    given: threading.Event = field(default_factory=threading.Event)


class Pool:
    """Thread-safe pool. Create it in the process that uses it: a fork inherits neither threads nor usable sockets."""

    def __init__(
        self,
        addresses: Sequence[Address],
        limits: Limits | None = None,
        owner: Owner | None = None,
        tend_s: float = TEND_S,
        outage_level: int = logging.WARNING,
    ) -> None:
        """`outage_level`: level of the log line about a server that cannot be reached."""
        self._servers = {address.url: _Server(Connection(address, limits)) for address in addresses}
        self.limits = limits or Limits()
        self._owner: Owner = owner or Alone()
        self._tend_s = tend_s
        self._outage_level = outage_level
        self._lock = threading.Lock()
        self._free: deque[_Server] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self._servers)

    def warm(self) -> None:
        """Start to connect in the background, without waiting. The first `acquire` does this too."""
        with self._lock:
            if self._threads or self._closed.is_set():
                return
            self._threads = [
                threading.Thread(target=self._keep, args=(server,), name=f"policy {server.url}", daemon=True)
                for server in self._servers.values()
            ]
            for thread in self._threads:
                thread.start()

    @contextmanager
    def acquire(self, timeout_s: float, url: str = "", away_s: float = math.inf) -> Iterator[Connection]:
        """Yield the connection of a free server, or of the server `url`, for one request. First come, first served.

        Raises PolicyUnavailable after the timeout; or earlier, when no suitable server was connected for `away_s`.
        """
        server = self._take(timeout_s, url, away_s)
        try:
            yield server.connection
        finally:
            self._settle(server)

    def infer(
        self,
        observation: Mapping[str, Any],
        wait_s: float,
        reply_s: float | None = None,
        url: str = "",
        away_s: float = math.inf,
    ) -> Reply:
        """Make one call. The request is encoded before a server is acquired, so that no server waits for it."""
        frame = frame_of(observation)
        with self.acquire(wait_s, url, away_s) as connection:
            return connection.exchange(frame, reply_s)

    @contextmanager
    def reserve(self, most: int) -> Iterator[str | None]:
        """Reserve the connected server with the fewest episodes for the block. Yields the server's URL, or
        None if it has `most` episodes already, or no server is connected."""
        with self._lock:
            there = [server for server in self._servers.values() if server.is_there]
            chosen = min(there, key=lambda server: server.episodes, default=None)
            if chosen and chosen.episodes >= most:
                chosen = None
            if chosen:
                chosen.episodes += 1
        try:
            yield chosen.url if chosen else None
        finally:
            if chosen:
                with self._lock:
                    chosen.episodes -= 1

    def status(self) -> list[PolicyServer]:
        with self._lock:
            return [status_of(server.connection, server.state) for server in self._servers.values()]

    def metadata(self, url: str) -> Mapping[str, Any]:
        """Return the metadata that the server sent; empty before the first connection."""
        return self._servers[url].connection.metadata

    def close(self) -> None:
        """Close the connections. Requests in flight may still end; no new request starts."""
        self._closed.set()
        for server in self._servers.values():
            server.wake.set()
        deadline = time.monotonic() + self._tend_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))  # a connecting thread ends by itself
        with self._lock:
            for server in self._servers.values():
                if server.state != "busy":
                    self._leave(server)

    def _take(self, timeout_s: float, url: str, away_s: float) -> _Server:
        if url and url not in self._servers:
            raise ValueError(f"{url} is not a server of this pool")
        self.warm()
        with self._lock:
            for server in self._free:
                if url in ("", server.url):
                    self._free.remove(server)
                    server.state = "busy"
                    return server
            waiter = _Waiter(url)
            self._waiters.append(waiter)
        began = now = time.monotonic()
        while not waiter.given.wait(min(LOOK_S, max(0.0, began + timeout_s - now))):
            now = time.monotonic()
            if now >= began + timeout_s or self._gone_s(url, began) > away_s:
                break
        with self._lock:
            if waiter.server:
                return waiter.server
            self._waiters.remove(waiter)
        raise PolicyUnavailable(f"No policy server was free within {now - began:.0f} s: {self.why(url)}.")

    def _gone_s(self, url: str, since: float) -> float:
        """Return for how long no suitable server has been connected, counted from `since` on."""
        wanted = [server for server in self._servers.values() if url in ("", server.url)]
        if any(server.is_there for server in wanted):
            return 0.0
        return time.monotonic() - max([since, *(server.away_since for server in wanted)])

    def why(self, url: str = "") -> str:
        """Say why no server, or not the server `url`, is free."""
        chosen = [server for server in self.status() if url in ("", server.url)]
        return "; ".join(f"{server.url} {_situation(server)}" for server in chosen) or "no server is configured"

    def _settle(self, server: _Server) -> None:
        """After a request, pass the server to the next waiting caller, to the free servers, or back to its keeper."""
        with self._lock:
            if self._closed.is_set() or not server.is_owned:
                self._leave(server)
            if server.connection.is_open:
                self._offer(server)
                return
            server.leave()
        server.wake.set()

    def _offer(self, server: _Server) -> None:
        for waiter in self._waiters:
            if waiter.url in ("", server.url):
                self._waiters.remove(waiter)
                server.state, waiter.server = "busy", server
                waiter.given.set()
                return
        server.state = "free"
        self._free.append(server)

    def _leave(self, server: _Server) -> None:
        server.connection.close()
        if server in self._free:
            self._free.remove(server)
        if server.is_owned:
            server.is_owned = False
            self._owner.give_back(server.url)
        server.leave()

    def _keep(self, server: _Server) -> None:
        """Loop of the keeper thread of one server; no other thread connects it."""
        said = ""
        while not self._closed.is_set():
            try:
                wait_s = self._check(server)
                if server.connection.is_open and said:
                    log.info("policy server %s is connected again", server.url)
                    said = ""
            except AssayError as error:
                if not said:  # once per outage
                    log.log(self._outage_level, "%s", error)
                said, wait_s = str(error), max(server.connection.retry_in_s, FIRST_BACKOFF_S)
            server.wake.wait(wait_s)
            server.wake.clear()

    def _check(self, server: _Server) -> float:
        """Check the server once; return the seconds until the next check. Raises the error of a failed connection."""
        is_ours = self._owner.try_take(server.url)
        with self._lock:
            server.is_owned = is_ours
            if server.state == "busy":  # the thread that uses it settles it
                return self._tend_s
            if is_free := server.state == "free":
                self._free.remove(server)
                server.state = "busy"  # used by this thread, for a moment
        if not is_ours:
            server.connection.close()
            server.leave("elsewhere")
            return self._tend_s
        try:
            if is_free:
                server.connection.tend()
            elif wait_s := server.connection.retry_in_s:
                server.leave()
                return wait_s
            else:
                server.connection.connect()
        except AssayError:
            server.leave()
            raise
        with self._lock:
            if self._closed.is_set():
                self._leave(server)
            else:
                self._offer(server)
        return self._tend_s


def _situation(server: PolicyServer) -> str:
    if server.busy:
        return "is busy"
    if server.elsewhere:
        return "is leased by another process"
    if server.error:
        return f"is unavailable ({server.error})"
    return "is not connected yet"
