"""A question through the real queue to the real worker: who are you, and what do you see?

`make up` asks it of every queue before it says that the system answers.
"""

import asyncio
import json
import os
import threading
import time
from typing import Any
from uuid import uuid4

from celery import shared_task
from redis import Redis

from config import keys
from tasks.app import AssayCelery, AssayTask

LIFETIME_S = 60


@shared_task(bind=True, base=AssayTask, name="assay.probe")
def probe(self: AssayTask, /, token: str) -> None:
    runtime = self.runtime
    answer = {
        "worker": runtime.worker,
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "thread": threading.get_ident(),
        "loop": runtime.run_async(_loop_identity(), timeout_s=5),
        "environment": {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")},
    }
    pipeline = runtime.state.pipeline(transaction=True)  # a worker that dies between two steps would leave it for good
    pipeline.rpush(keys.probe(token), json.dumps(answer))
    pipeline.expire(keys.probe(token), LIFETIME_S)
    pipeline.execute()


def send_probe(app: AssayCelery, queue: str) -> str:
    """Ask a queue; the token is for reading the answer."""
    token = uuid4().hex
    app.publish("assay.probe", queue, "interactive", token=token)
    return token


def read_probe(state: Redis, token: str) -> bool:
    """Whether the answer has come."""
    return bool(state.exists(keys.probe(token)))


def ask(app: AssayCelery, state: Redis, queue: str, timeout_s: float) -> dict[str, Any] | None:
    """One answer from a worker of this queue; None when none came in time."""
    token = send_probe(app, queue)
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        # Shorter than the client's own command timeout, which would end the wait with an error.
        if reply := state.blpop([keys.probe(token)], timeout=min(1.0, left_s)):
            return dict(json.loads(reply[1]))
    return None


async def _loop_identity() -> int:
    return id(asyncio.get_running_loop())
