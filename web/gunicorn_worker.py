"""gunicorn's threaded worker, with the farewell of a connection moved to the thread that served it.

gunicorn 27 waits up to two seconds for a client to close its side of a finished connection, in the loop that accepts
everybody else: one client that sends `Connection: close` and then lingers stops the whole process for that long.
"""

import contextlib
import socket
import time
from typing import Any

from gunicorn.workers.gthread import _DEFER, ThreadWorker  # type: ignore[import-untyped]

#: Seconds, and bytes, that a client may take for closing its side.
LINGER_S = 2.0
LINGER_BYTES = 1 << 16


class Worker(ThreadWorker):  # type: ignore[misc]
    def handle(self, conn: Any) -> Any:
        goes_on = super().handle(conn)
        if goes_on is not _DEFER and not (goes_on and self.alive):
            with contextlib.suppress(OSError):
                _take_leave(conn.sock)
        return goes_on


def _take_leave(connection: socket.socket) -> None:
    """End our side, wait for the other's, then end both: what the accepting loop does next returns at once."""
    connection.shutdown(socket.SHUT_WR)
    deadline, left = time.monotonic() + LINGER_S, LINGER_BYTES
    try:
        while left > 0 and (left_s := deadline - time.monotonic()) > 0:
            connection.settimeout(left_s)
            if not (data := connection.recv(4096)):
                return
            left -= len(data)
    except TimeoutError:
        pass
    finally:
        connection.shutdown(socket.SHUT_RDWR)
