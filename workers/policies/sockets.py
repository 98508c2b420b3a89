"""Sockets with a deadline that bounds every wait.

A socket's own timeout restarts with each received piece: a server that sends one byte per second would block its
client for ever.
"""

import math
import socket
import ssl
import time
from typing import Any

from workers.policies.address import Address

_KEEPALIVE_S = 30


class BoundedSocket(socket.socket):
    deadline = math.inf

    def recv(self, *arguments: Any) -> bytes:
        self.settimeout(_left_s(self.deadline))
        return super().recv(*arguments)

    def send(self, *arguments: Any) -> int:
        self.settimeout(_left_s(self.deadline))
        return super().send(*arguments)

    def sendall(self, *arguments: Any) -> None:
        self.settimeout(_left_s(self.deadline))  # bounds the whole call
        super().sendall(*arguments)


class BoundedTlsSocket(ssl.SSLSocket):
    """TLS socket with a deadline; `SSLSocket.sendall` calls `send`."""

    deadline = math.inf

    def recv(self, *arguments: Any) -> bytes:
        self.settimeout(_left_s(self.deadline))
        return super().recv(*arguments)

    def send(self, *arguments: Any) -> int:
        self.settimeout(_left_s(self.deadline))
        return super().send(*arguments)


def _left_s(deadline: float) -> float | None:
    """Return the remaining seconds for `settimeout`, where None means no timeout."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return None if left_s == math.inf else left_s


def open_socket(address: Address, deadline: float) -> BoundedSocket | BoundedTlsSocket:
    """Connect to the server, with TLS if its URL says so. Raises OSError, which includes TimeoutError."""
    left_s = max(deadline - time.monotonic(), 0.001)
    plain = socket.create_connection((address.host, address.port), left_s)
    bounded = BoundedSocket(fileno=plain.detach())
    try:
        bounded.deadline = deadline
        bounded.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that loses power closes no connection: without keepalive an idle connection would stay open.
        bounded.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            bounded.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        if not address.is_secure:
            return bounded
        context = ssl.create_default_context()
        context.sslsocket_class = BoundedTlsSocket
        bounded.settimeout(_left_s(deadline))
        secured = context.wrap_socket(bounded, server_hostname=address.host)
        assert isinstance(secured, BoundedTlsSocket)
        secured.deadline = deadline
        return secured
    except BaseException:
        bounded.close()
        raise
