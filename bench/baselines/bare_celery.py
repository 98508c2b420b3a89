"""Baseline: plain Celery with a task for each item (`.delay()` and `.get()`), prefork children, results in Redis."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery

URL = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:1/0")
app = Celery("bare", broker=URL, backend=URL)
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, worker_hijack_root_logger=False)


@app.task(name="bare.free")
def free(x: int) -> int:
    return x


@contextmanager
def worker(url: str, children: int) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", __name__, "worker", "-c", str(children), "-l", "ERROR"],
        env=os.environ | {"BENCH_REDIS_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    app.conf.update(broker_url=url, result_backend=url)
    try:
        free.delay(1).get(timeout=30)
        yield
    finally:
        process.terminate()
        process.wait()


def items_per_second(number: int) -> float:
    started = time.perf_counter()
    for result in [free.delay(x) for x in range(number)]:
        result.get(timeout=120)
    return number / (time.perf_counter() - started)


def round_trip_s() -> float:
    started = time.perf_counter()
    free.delay(1).get(timeout=30)
    return time.perf_counter() - started
