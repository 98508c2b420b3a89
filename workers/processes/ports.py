"""Free TCP ports of this machine: choose them, and find out why a port cannot be used."""

import socket

from tasks.errors import Permanent

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port of the loopback address that no process listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def free_ports(number: int) -> int:
    """Return the first of `number` consecutive free ports."""
    for _ in range(100):
        first = free_port()
        if first + number < 65_000 and all(is_free(port) for port in range(first, first + number)):
            return first
    raise Permanent(f"This machine has no {number} consecutive free ports.")


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port of the loopback address."""
    return bind_error(LOOPBACK, port) is None


def bind_error(host: str, port: int) -> OSError | None:
    """Return the error of a server that would listen on this address, or None if the address is free."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that just ended leaves its port free
            probe.bind(address)
    except OSError as error:
        return error
    return None
