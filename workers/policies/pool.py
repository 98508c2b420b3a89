"""The policy servers of a process: each connected, tended and brought back by a thread of its own.

Nobody but that thread ever waits for a connection to be made: who wants a server waits for a free one, up to a
deadline, and a server that is down, or appears later, holds nobody up. One request is in flight per server.
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

#: Seconds between two looks at an idle connection, and at who owns a server.
TEND_S = 2.0
#: Seconds between two looks of who waits at whether the server is still there.
LOOK_S = 0.25


@dataclass(slots=True, eq=False)
class _Server:
    connection: Connection
    state: State = "away"
    away_since: float = field(default_factory=time.monotonic)
    seats: int = 0
    """Episodes that run with it."""
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
    """Empty: any server will do."""
    server: _Server | None = None
    given: threading.Event = field(default_factory=threading.Event)


class Pool:
    """Thread-safe. Made in the process that uses it: a fork inherits neither threads nor sockets."""

    def __init__(
        self,
        addresses: Sequence[Address],
        limits: Limits | None = None,
        owner: Owner | None = None,
        tend_s: float = TEND_S,
        outage_level: int = logging.WARNING,
    ) -> None:
        """`outage_level`: of the line that says that a server cannot be reached."""
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
        """Begin to connect, without waiting for it. The first `acquire` does this too."""
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
        """A free server's connection, or that server's, for one request. Who waits longest is served first.

        Raises PolicyUnavailable after the timeout; or earlier, when none that would do was there for `away_s`.
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
        """One call. The request is made ready before a server is taken, so that none waits for that."""
        frame = frame_of(observation)
        with self.acquire(wait_s, url, away_s) as connection:
            return connection.exchange(frame, reply_s)

    @contextmanager
    def seat(self, most: int) -> Iterator[str | None]:
        """The connected server with the fewest episodes, if it has less than `most`: its URL, kept for the block."""
        with self._lock:
            there = [server for server in self._servers.values() if server.is_there]
            chosen = min(there, key=lambda server: server.seats, default=None)
            if chosen and chosen.seats >= most:
                chosen = None
            if chosen:
                chosen.seats += 1
        try:
            yield chosen.url if chosen else None
        finally:
            if chosen:
                with self._lock:
                    chosen.seats -= 1

    def status(self) -> list[PolicyServer]:
        with self._lock:
            return [status_of(server.connection, server.state) for server in self._servers.values()]

    def metadata(self, url: str) -> Mapping[str, Any]:
        """What the server said of itself; empty before it was first connected."""
        return self._servers[url].connection.metadata

    def close(self) -> None:
        """End all connections. What is in flight may still end; nothing new begins."""
        self._closed.set()
        for server in self._servers.values():
            server.wake.set()
        deadline = time.monotonic() + self._tend_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))  # one that is connecting ends by itself
        with self._lock:
            for server in self._servers.values():
                if server.state != "busy":
                    self._leave(server)

    def _take(self, timeout_s: float, url: str, away_s: float) -> _Server:
        if url and url not in self._servers:
            raise ValueError(f"{url} is none of this pool's servers")
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
        """How long none of the servers that would do has been there, since then."""
        wanted = [server for server in self._servers.values() if url in ("", server.url)]
        if any(server.is_there for server in wanted):
            return 0.0
        return time.monotonic() - max([since, *(server.away_since for server in wanted)])

    def why(self, url: str = "") -> str:
        """Why no server is free, or not this one."""
        chosen = [server for server in self.status() if url in ("", server.url)]
        return "; ".join(f"{server.url} {_situation(server)}" for server in chosen) or "there is none"

    def _settle(self, server: _Server) -> None:
        """After a use: to the next who waits, to the free ones, or back to its keeper."""
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
        """The life of one server's connection; the only thread that makes it."""
        said = ""
        while not self._closed.is_set():
            try:
                wait_s = self._look_after(server)
                if server.connection.is_open and said:
                    log.info("policy server %s is back", server.url)
                    said = ""
            except AssayError as error:
                if not said:  # once per outage
                    log.log(self._outage_level, "%s", error)
                said, wait_s = str(error), max(server.connection.retry_in_s, FIRST_BACKOFF_S)
            server.wake.wait(wait_s)
            server.wake.clear()

    def _look_after(self, server: _Server) -> float:
        """One look; how long until the next. Raises what keeps the server from being connected."""
        is_ours = self._owner.try_take(server.url)
        with self._lock:
            server.is_owned = is_ours
            if server.state == "busy":  # whoever uses it will see to it
                return self._tend_s
            if is_free := server.state == "free":
                self._free.remove(server)
                server.state = "busy"  # with us, for a moment
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
        return "is another process's"
    if server.error:
        return f"is away ({server.error})"
    return "is not connected yet"
