"""Ports that follow each other, for servers that take a first port and count on."""

import socket
from contextlib import ExitStack

from workers.embedded_redis import free_port


def free_ports(number: int) -> list[int]:
    for _ in range(100):
        first = free_port()
        with ExitStack() as stack:
            try:
                for port in range(first, first + number):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return list(range(first, first + number))
    raise AssertionError(f"no {number} free ports in a row")
