"""A Redis and workers of our own for the length of a benchmark."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from config.settings import Settings
from tasks.app import create_celery
from tasks.jobs.core import JobCore, create_core
from tasks.jobs.model import Job, JobRequest
from workers.embedded_redis import EmbeddedRedis, free_port


class Stack:
    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.settings = Settings(redis_url=url, node="bench", storage_url=(folder / "storage").as_uri())
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
    def workers(
        self, slots: int, slow: int = 0, cpu: int = 0, api: int = 0, policies: Sequence[str] = ()
    ) -> Iterator[list[int]]:
        """This many device slots, the last ones four times slower, CPU and API workers, and policy servers that the
        slots share. Gives their launchers' pids."""
        fast = [argument for slot in range(slots - slow) for argument in ("--slot", str(slot))]
        launchers = [self._launch("device", slots, *fast, ASSAY_POLICY_URLS=",".join(policies))]
        if slow:
            rest = [argument for slot in range(slots - slow, slots) for argument in ("--slot", str(slot))]
            launchers.append(self._launch("device", slots, *rest, ASSAY_SIMULATED_SLOWDOWN="4"))
        if cpu:
            launchers.append(self._launch("cpu", slots, ASSAY_CPU_WORKERS_MIN=str(cpu), ASSAY_CPU_WORKERS_MAX=str(cpu)))
        if api:
            profiles = str(self.settings.profiles_file or "")
            launchers.append(
                self._launch(
                    "api",
                    slots,
                    ASSAY_API_WORKERS_MIN=str(api),
                    ASSAY_API_WORKERS_MAX=str(api),
                    ASSAY_PROFILES_FILE=profiles,
                )
            )
        try:
            while sum(worker.state == "ready" for worker in self.core.registry.workers()) < slots + cpu + api:
                time.sleep(0.1)
            self.core.dispatcher.forget_fleet()
            self.run([{"x": x} for x in range(slots * 4)], spec={"batch_items": 1, "cost_s": 0.05})  # warm
            yield [launcher.pid for launcher in launchers]
        finally:
            for launcher in launchers:
                launcher.send_signal(signal.SIGTERM)
            for launcher in launchers:
                launcher.wait()
            self.core.dispatcher.forget_fleet()

    def _launch(self, pool: str, slots: int, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "workers.launch", pool, *arguments],
            env=os.environ
            | {
                "ASSAY_REDIS_URL": self.url,
                "ASSAY_NODE": "bench",
                "ASSAY_SLOTS": f"cpu:{slots}",
                "ASSAY_STORAGE_URL": self.settings.storage_url,
                "ASSAY_LOG_LEVEL": "WARNING",
            }
            | environment,
        )


def _prefer(pid: int) -> None:
    """Let Redis run when it can: with fewer cores than processes, a command takes the time of whoever it waits for.
    Where we may not, it takes its chance."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, -15)


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[str, int]]:
    """Its URL, and its process."""
    redis = EmbeddedRedis("state", folder, free_port())
    server = subprocess.Popen(redis.command().argv, stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        _prefer(server.pid)
        yield redis.url, server.pid
    finally:
        server.terminate()
        server.wait()


def measure_all(*measures: Callable[[Stack], None]) -> int:
    """Each on a stack of its own. One that fails is told, and the others are measured; the exit code."""
    failed = 0
    for measure in measures:
        try:
            with stack() as stand:
                measure(stand)
        except Exception as error:  # noqa: BLE001  # told, and in the exit code
            failed += 1
            traceback.print_exc()
            print(f"{measure.__name__} failed: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


@contextmanager
def stack() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as (url, _):
        yield Stack(url, Path(folder))
