"""Waiting in the thread of a request, which takes a seat (`web/seats.py`): for a job, or for anything else."""

import select
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from flask import request

from tasks.jobs.model import Job
from web.services import services

#: Seconds after which one who waits looks whether this process is to stop, and whether anybody still wants the answer.
LOOK_S = 2.0
#: Seconds between two questions, at first and in the long run.
POLL_S, MOST_POLL_S = 0.005, 0.05

T = TypeVar("T")


def poll(ask: Callable[[float], T], is_enough: Callable[[T], bool], seconds: float) -> T | None:
    """The first answer that is enough, else the last one; asked with the seconds waited so far. None when nobody may
    wait: the time is nothing, no thread is free for it, or this process is to stop or the client is gone at once."""
    seconds = min(seconds, services().settings.max_wait_s)
    seats, client = services().seats, request.environ.get("gunicorn.socket")
    if not seconds or not seats.take():
        return None
    began, pause_s, found = time.monotonic(), POLL_S, None
    try:
        while (left_s := began + seconds - time.monotonic()) > 0 and seats.is_serving() and not is_gone(client):
            time.sleep(min(pause_s, left_s))
            pause_s = min(MOST_POLL_S, pause_s * 1.2)
            found = ask(time.monotonic() - began)
            if is_enough(found):
                break
        return found
    finally:
        seats.give_back()


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
