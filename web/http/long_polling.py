"""Long polling: waits in the thread of a request until a job has ended, or a condition holds.

A waiting request counts against the threads that `web/http/long_requests.py` limits.
"""

import select
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from flask import request

from tasks.jobs.model import Job
from web.services import services

#: Interval in seconds at which a waiting request checks whether this process stops, and whether its client is gone.
CHECK_S = 2.0
#: Seconds between two polls: at first, and at most.
MIN_POLL_S, MAX_POLL_S = 0.005, 0.05

T = TypeVar("T")


def poll(ask: Callable[[float], T], is_enough: Callable[[T], bool], seconds: float) -> T | None:
    """Poll `ask` with the seconds waited until its result `is_enough` or the time is up; return the last result.

    Return None when no poll was made: the time is zero, no thread may wait, this process stops, or the client is gone.
    """
    seconds = min(seconds, services().settings.max_wait_s)
    long_requests, client = services().long_requests, request.environ.get("gunicorn.socket")
    if not seconds or not long_requests.take():
        return None
    began, pause_s, found = time.monotonic(), MIN_POLL_S, None
    try:
        while (left_s := began + seconds - time.monotonic()) > 0 and long_requests.is_serving() and not is_gone(client):
            time.sleep(min(pause_s, left_s))
            pause_s = min(MAX_POLL_S, pause_s * 1.2)
            found = ask(time.monotonic() - began)
            if is_enough(found):
                break
        return found
    finally:
        long_requests.give_back()


def wait(job_id: str, seconds: float, is_wanted: Callable[[], bool] = lambda: True) -> Job:
    """Wait until the job ends, and return it.

    Return the unfinished job when the time is up, this process stops, or `is_wanted` returns False.
    """
    deadline = time.monotonic() + seconds
    while True:
        left_s = deadline - time.monotonic()
        job = services().core.results.wait(job_id, min(left_s, CHECK_S))
        if not job.is_active or left_s <= CHECK_S or not services().long_requests.is_serving() or not is_wanted():
            return job


def is_gone(client: socket.socket | None) -> bool:
    """Return whether the client has closed its side, so that a response would reach no reader."""
    if client is None:
        return False
    try:
        poller = select.poll()  # select() supports only the first 1,024 descriptors
        poller.register(client, select.POLLIN)
        return bool(poller.poll(0)) and client.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):
        return True
