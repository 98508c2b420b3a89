"""A connection to Redis that breaks after a number of bytes, as if its process had been killed at that moment."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry


@contextmanager
def cut_after(url: str, number: int) -> Iterator[Redis]:
    """Return a client of which only the first `number` bytes reach the Redis at this URL."""
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = threading.Thread(target=_relay, args=(listener, port, number))
        relay.start()
        here = Redis.from_url(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", retry=Retry(NoBackoff(), 0))
        try:
            yield here
        finally:
            here.close()
            with suppress(OSError), socket.create_connection(listener.getsockname(), timeout=1):
                pass  # the relay still waits for a client that never came
            relay.join()


def _relay(listener: socket.socket, port: int, left: int) -> None:
    near, _ = listener.accept()
    listener.close()  # a killed process does not connect again
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        back = threading.Thread(target=_pump, args=(far, near))
        back.start()
        with suppress(OSError):
            while left > 0 and (data := near.recv(min(left, 65536))):
                far.sendall(data)
                left -= len(data)
        with suppress(OSError):
            far.shutdown(socket.SHUT_WR)  # Redis reads the bytes it has, and then the end of the stream
        back.join()
        with suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
