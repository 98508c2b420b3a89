"""Messages between a simulator's process and its owner, over a socket pair, each with its length as a prefix."""

import socket
import struct
from typing import Any

from workers.policies.codec import decode, encode

_LENGTH = struct.Struct("!Q")


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    body = encode(message)
    sock.sendall(_LENGTH.pack(len(body)))
    sock.sendall(body)


def receive(sock: socket.socket) -> dict[str, Any]:
    """Receive a message. Raises EOFError if the other side is gone, TimeoutError after the socket's timeout."""
    (length,) = _LENGTH.unpack(_read(sock, _LENGTH.size))
    message: dict[str, Any] = decode(_read(sock, length))
    return message


def _read(sock: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = sock.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data
