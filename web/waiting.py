"""Waiting for a job in the thread of a request, which takes a seat (`web/seats.py`)."""

import select
import socket
import time
from collections.abc import Callable

from tasks.jobs.model import Job
from web.services import services

#: Seconds after which one who waits looks whether this process is to stop, and whether anybody still wants the answer.
LOOK_S = 2.0


def wait(job_id: str, seconds: float, is_wanted: Callable[[], bool] = lambda: True) -> Job:
    """The job when it is over; or as it is when the time is up, this process is to stop, or nobody wants it."""
    deadline = time.monotonic() + seconds
    while True:
        left_s = deadline - time.monotonic()
        job = services().core.results.wait(job_id, min(left_s, LOOK_S))
        if not job.is_active or left_s <= LOOK_S or not services().seats.is_serving() or not is_wanted():
            return job


def is_gone(client: socket.socket | None) -> bool:
    """Whether the client has closed its side: nobody will read what is written to it."""
    if client is None:
        return False
    try:
        look = select.poll()  # select() knows only the first 1,024 descriptors
        look.register(client, select.POLLIN)
        return bool(look.poll(0)) and client.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):
        return True
