"""A Redis and workers of our own for the length of a benchmark."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from config.settings import Settings
from tasks.app import create_celery
from tasks.jobs.core import JobCore, create_core
from tasks.jobs.model import Job, JobRequest
from workers.embedded_redis import EmbeddedRedis, free_port


class Stack:
    def __init__(self, url: str) -> None:
        self.url = url
        self.settings = Settings(redis_url=url, node="bench")
        self.celery = create_celery(self.settings)
        self.core: JobCore = create_core(self.settings, self.celery)

    def submit(self, items: list[dict[str, Any]], **options: Any) -> str:
        return self.core.door.submit(JobRequest(kind="simulated", items=items, **options))

    def finish(self, job: str) -> Job:
        ended = self.core.results.wait(job, 600)
        assert ended.state == "done", ended
        return ended

    def run(self, items: list[dict[str, Any]], **options: Any) -> float:
        """Seconds from submit to the last result read."""
        started = time.perf_counter()
        job = self.finish(self.submit(items, **options))
        assert sum(1 for _ in self.core.results.read(job)) == len(items)
        return time.perf_counter() - started

    @contextmanager
    def workers(self, slots: int) -> Iterator[None]:
        """This many device slots, while it lasts."""
        launcher = subprocess.Popen(
            [sys.executable, "-m", "workers.launch", "device"],
            env=os.environ
            | {
                "ASSAY_REDIS_URL": self.url,
                "ASSAY_NODE": "bench",
                "ASSAY_SLOTS": f"cpu:{slots}",
                "ASSAY_LOG_LEVEL": "WARNING",
            },
        )
        try:
            while sum(worker.state == "ready" for worker in self.core.registry.workers()) < slots:
                time.sleep(0.1)
            self.core.dispatcher.forget_fleet()
            self.run([{"x": x} for x in range(slots * 4)], spec={"batch_items": 1, "cost_s": 0.05})  # warm
            yield
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait()
            self.core.dispatcher.forget_fleet()


@contextmanager
def stack() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory() as folder:
        redis = EmbeddedRedis("state", Path(folder), free_port())
        server = subprocess.Popen(redis.command().argv, stdout=subprocess.DEVNULL)
        try:
            time.sleep(0.5)
            yield Stack(redis.url)
        finally:
            server.terminate()
            server.wait()
