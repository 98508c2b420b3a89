"""Probe task: sent through a real queue, a real worker replies with its identity and environment.

`make up` probes every queue before it reports that the system is ready.
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

TASK = "assay.probe"
LIFETIME_S = 60


@shared_task(bind=True, base=AssayTask, name=TASK)
def probe(self: AssayTask, /, probe_id: str) -> None:
    runtime = self.runtime
    answer = {
        "worker": runtime.worker,
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "thread": threading.get_ident(),
        "loop": runtime.run_async(_loop_identity(), timeout_s=5),
        "environment": {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")},
    }
    pipeline = runtime.state.pipeline(transaction=True)  # a crash between two commands would leak the key
    pipeline.rpush(keys.probe(probe_id), json.dumps(answer))
    pipeline.expire(keys.probe(probe_id), LIFETIME_S)
    pipeline.execute()


def send_probe(app: AssayCelery, queue: str) -> str:
    """Send a probe to a queue and return its id, for reading the answer."""
    probe_id = uuid4().hex
    app.publish(TASK, queue, "interactive", probe_id=probe_id)
    return probe_id


def is_answered(state: Redis, probe_id: str) -> bool:
    """Return whether a worker has answered the probe."""
    return bool(state.exists(keys.probe(probe_id)))


def ask(app: AssayCelery, state: Redis, queue: str, timeout_s: float) -> dict[str, Any] | None:
    """Send a probe and return the answer of a worker of this queue; None on timeout."""
    probe_id = send_probe(app, queue)
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        # Shorter than the client's own command timeout, which would end the wait with an error.
        if reply := state.blpop([keys.probe(probe_id)], timeout=min(1.0, left_s)):
            return dict(json.loads(reply[1]))
    return None


async def _loop_identity() -> int:
    return id(asyncio.get_running_loop())
