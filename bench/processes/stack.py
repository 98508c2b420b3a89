"""A private Redis with Assay workers, started for one benchmark and stopped after it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from config.settings import Settings
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.jobs.core import JobCore
from tasks.jobs.model import Job, JobRequest
from tasks.jobs.states import DONE
from tasks.measurement.timed_job import TimedJob, run_timed
from workers.processes.embedded_redis import EmbeddedRedis
from workers.processes.ports import free_port

#: Seconds that a measured job may take.
JOB_TIMEOUT_S = 600.0
#: An API profile with 128 calls in flight from the start, so that no rate is limited by the ramp-up of concurrency.
PROFILE = """
[profiles.main]
base_url = "{url}"
models = ["development"]
concurrency = 128
concurrency_start = 128
"""


class Stack:
    """The job core of a private Redis; it starts workers for the length of a `with` block."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.settings = Settings(redis_url=url, node="bench", storage_url=(folder / "storage").as_uri())
        self.celery = create_celery(self.settings)
        self.core: JobCore = create_core(self.settings, self.celery)

    def configure(self, **changes: Any) -> None:
        """Change settings of the job core, and of workers that are started later."""
        self.settings = self.settings.model_copy(update=changes)
        self.core = create_core(self.settings, self.celery)

    def use_api(self, url: str) -> None:
        """Define the API profile `main` at this base URL."""
        profiles = self.folder / "profiles.toml"
        profiles.write_text(PROFILE.format(url=url))
        self.configure(profiles_file=profiles)

    def submit(self, items: list[dict[str, Any]], kind: str = "simulated", **options: Any) -> str:
        """Validate and submit a job. Returns its id."""
        return self.core.submitter.submit(JobRequest(kind=kind, items=items, **options))

    def wait(self, job_id: str) -> Job:
        return self.core.results.wait(job_id, JOB_TIMEOUT_S)

    def finish(self, job_id: str) -> Job:
        """Wait for the end of a job, which must be `done`."""
        ended = self.wait(job_id)
        assert ended.state == DONE, ended
        return ended

    def time(self, kind: str, items: list[dict[str, Any]], **options: Any) -> TimedJob:
        """Run a job and read its results. Raises MeasurementFailed unless every item succeeded."""
        return run_timed(self.core, lambda: self.submit(items, kind, **options), self.wait)

    def run(self, items: list[dict[str, Any]], **options: Any) -> float:
        """Run a `simulated` job. Returns the seconds from its submit until the last result was read."""
        return self.time("simulated", items, **options).seconds_with_rows

    @contextmanager
    def workers(
        self,
        slots: int,
        slow: int = 0,
        cpu: int = 0,
        api: int = 0,
        policies: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[list[int]]:
        """Start `slots` device workers, of which the last `slow` are four times slower, and CPU and API workers.

        The device slots share the policy servers at these URLs. `environment`: variables of every worker. Yields the
        process ids of the launchers.
        """
        more = {"ASSAY_POLICY_URLS": ",".join(policies)} | dict(environment or {})
        fast = [argument for slot in range(slots - slow) for argument in ("--slot", str(slot))]
        launchers = [self._launch("device", slots, *fast, **more)]
        if slow:
            rest = [argument for slot in range(slots - slow, slots) for argument in ("--slot", str(slot))]
            launchers.append(self._launch("device", slots, *rest, **more | {"ASSAY_SIMULATED_SLOWDOWN": "4"}))
        if cpu:
            launchers.append(
                self._launch("cpu", slots, **more, ASSAY_CPU_WORKERS_MIN=str(cpu), ASSAY_CPU_WORKERS_MAX=str(cpu))
            )
        if api:
            profiles = str(self.settings.profiles_file or "")
            launchers.append(
                self._launch(
                    "api",
                    slots,
                    **more,
                    ASSAY_API_WORKERS_MIN=str(api),
                    ASSAY_API_WORKERS_MAX=str(api),
                    ASSAY_PROFILES_FILE=profiles,
                )
            )
        try:
            while sum(worker.state == "ready" for worker in self.core.registry.workers()) < slots + cpu + api:
                time.sleep(0.1)
            self.core.dispatcher.forget_fleet()
            self.run([{"x": x} for x in range(slots * 4)], spec={"batch_items": 1, "cost_s": 0.05})  # warm up
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
                "ASSAY_LOG_LEVEL": os.environ.get("BENCH_LOG", "WARNING"),
            }
            | environment,
        )


def _raise_priority(pid: int) -> None:
    """Let the scheduler prefer Redis: with fewer cores than processes, each command would wait for its client's CPU.

    Without the permission to do so, Redis keeps its normal priority."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, -15)


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a Redis server on a free port. Yields its URL and its process id."""
    redis = EmbeddedRedis("state", folder, free_port())
    server = subprocess.Popen(redis.command().argv, stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        _raise_priority(server.pid)
        yield redis.url, server.pid
    finally:
        server.terminate()
        server.wait()


def measure_all(*measures: Callable[[Stack], None]) -> int:
    """Run each measurement on a fresh stack; print a failure and continue. Returns the exit code: 1 after a failure."""
    failed = 0
    for measure in measures:
        try:
            with running_stack() as stack:
                measure(stack)
        except Exception as error:  # noqa: BLE001  # printed, and part of the exit code
            failed += 1
            traceback.print_exc()
            print(f"{measure.__name__} failed: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


@contextmanager
def running_stack() -> Iterator[Stack]:
    """Start a Redis in a temporary folder and connect a job core to it."""
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as (url, _):
        yield Stack(url, Path(folder))
