"""gunicorn's threaded worker, changed to close a connection in the thread that served it.

gunicorn 27 waits up to two seconds for a client to close its side of a finished connection, and waits in the loop that
accepts connections: a single client that sends `Connection: close` and then lingers blocks the whole process that long.
"""

import contextlib
import socket
import time
from typing import Any

from gunicorn.workers.gthread import _DEFER, ThreadWorker  # type: ignore[import-untyped]

#: Limits on a client that closes its side: seconds to wait, and bytes to read meanwhile.
LINGER_S = 2.0
LINGER_BYTES = 1 << 16


class Worker(ThreadWorker):  # type: ignore[misc]
    def handle(self, conn: Any) -> Any:
        keeps_alive = super().handle(conn)
        if keeps_alive is not _DEFER and not (keeps_alive and self.alive):
            with contextlib.suppress(OSError):
                _close(conn.sock)
        return keeps_alive


def _close(connection: socket.socket) -> None:
    """Shut down our side, wait for the client's, then shut down both: the accepting loop then closes without a wait."""
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
