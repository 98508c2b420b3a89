"""TCP ports for the servers of tests, reserved so that no other test and no outgoing connection takes them.

A port that is picked now and bound seconds later must not come from the ephemeral range, from which the kernel serves
every `bind(0)` and every outgoing connection. The ports here lie below that range, and each test process has a block
of them to itself, held by a file lock until the process ends.
"""

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

#: Number of ports in a block. A process uses them in turn and starts again at the first after the last.
BLOCK = 200
#: First port of the first block; ports below it belong to well-known services.
LOWEST = 10_000


def free_port() -> int:
    """Return a port on which nothing listens. It stays free until the caller binds it."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Return consecutive ports, for servers that take a first port and count on from it."""
    first, _ = _reserved_block()
    for start in itertools.islice(_starts(number), BLOCK):
        ports = list(range(first + start, first + start + number))
        if all(map(_is_free, ports)):
            return ports
    raise AssertionError(f"no {number} consecutive free ports in the block from {first}")


_next = itertools.count()


def _starts(number: int) -> Iterator[int]:
    """Yield the offsets in the block at which the next `number` ports begin, without overlap between calls."""
    while True:
        taken = [next(_next) % BLOCK for _ in range(number)]
        if taken[-1] - taken[0] == number - 1:  # else they go beyond the end of the block
            yield taken[0]


@cache
def _reserved_block() -> tuple[int, int]:
    """Return the first port of this process's block, and the lock's file descriptor, which stays open."""
    folder = Path(tempfile.gettempdir()) / f"assay-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    low, high = _ports_outside_the_ephemeral_range()
    for first in range(low, high - BLOCK + 1, BLOCK):
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a second test process holds this block
            os.close(lock)
        else:
            return first, lock
    raise AssertionError(f"every block of ports from {low} to {high} is held by a test process")


def _ports_outside_the_ephemeral_range() -> tuple[int, int]:
    """Return the larger of the ranges below and above the ephemeral ports; the whole range where both are too small."""
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except OSError:  # not Linux
        low, high = 49_152, 65_535
    below, above = (LOWEST, low), (high + 1, 65_536)
    best = max(below, above, key=lambda ports: ports[1] - ports[0])
    return best if best[1] - best[0] >= 20 * BLOCK else (LOWEST, 65_536)


def _is_free(port: int) -> bool:
    with ExitStack() as stack:
        try:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
    return True
