"""Telemetry of a worker: memory and CPU time of its processes, its busy time, the state of its GPUs.

A thread of the parent process measures the figures and the heartbeat publishes them: a driver that hangs stops the
figures, but never the heartbeat.
"""

import logging
import mmap
import struct
import threading
import time
from dataclasses import dataclass, field, replace

import psutil
from celery import signals

from tasks.worker_registry import Gpu, Worker
from workers.devices.nvml import MB, Nvml

log = logging.getLogger(__name__)

#: Measurements between two searches for new child processes, which read every process of the host.
LOOK_EVERY = 5
#: Seconds without an answer of the driver, which may hang, after which no GPU figures are reported.
STALE_S = 30.0

_DOUBLES = struct.Struct("dd")


class BusyClock:
    """Counter of the seconds in which at least one task ran. The process that runs tasks, this process or a forked
    child, writes the counter into shared memory; this process reads it."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _DOUBLES.size)
        self._lock = threading.Lock()
        self._running = 0
        self._most = 0.0

    def connect(self) -> None:
        """Count every task of this worker."""
        signals.task_prerun.connect(self._begin, weak=False)
        signals.task_postrun.connect(self._end, weak=False)

    def _begin(self, **_: object) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                total, _since = _DOUBLES.unpack_from(self._shared)
                _DOUBLES.pack_into(self._shared, 0, total, time.monotonic())

    def _end(self, **_: object) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                total, since = _DOUBLES.unpack_from(self._shared)
                _DOUBLES.pack_into(self._shared, 0, total + time.monotonic() - since, 0.0)

    def read(self) -> float:
        total, since = _DOUBLES.unpack_from(self._shared)
        # A concurrent write may make the two values inconsistent: the maximum keeps the clock from going back.
        self._most = max(self._most, total + (time.monotonic() - since if since else 0.0))
        return self._most


@dataclass
class Tree:
    """CPU time and memory of this process and its descendants."""

    processes: list[psutil.Process] = field(default_factory=list)
    cpu_s: float = 0.0
    memory_mb: int = 0
    _reads: int = 0

    def read(self) -> None:
        if self._reads % LOOK_EVERY == 0:
            own = psutil.Process()
            self.processes = [own, *own.children(recursive=True)]
        self._reads += 1
        cpu_s, memory = 0.0, 0
        for process in self.processes:
            try:
                with process.oneshot():
                    cpu_s += sum(process.cpu_times()[:4])  # includes children that have ended
                    memory += process.memory_info().rss
            except psutil.Error:  # it ended; its parent counts its CPU time
                continue
        self.cpu_s, self.memory_mb = max(self.cpu_s, cpu_s), memory // MB


class Telemetry:
    def __init__(self, worker: Worker, interval_s: float, nvml: Nvml | None = None) -> None:
        self._interval_s = interval_s
        self._nvml = nvml or Nvml(worker.devices)
        self._tree = Tree()
        self._gpus: tuple[Gpu, ...] = ()
        self._gpus_at = time.monotonic()
        self.busy = BusyClock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Start to measure. Call it after the prefork child was forked: the driver must not be in use by then."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to measure, without waiting for the thread: it may hang in the driver."""
        self._ended.set()

    def upon(self, worker: Worker) -> Worker:
        """Return the worker's record with the latest figures."""
        return replace(
            worker,
            memory_mb=self._tree.memory_mb,
            cpu_s=round(self._tree.cpu_s, 2),
            busy_s=round(self.busy.read(), 3),
            gpus=self._gpus if time.monotonic() - self._gpus_at < STALE_S else (),
        )

    def measure(self) -> None:
        self._tree.read()
        self._gpus = self._nvml.read()
        self._gpus_at = time.monotonic()

    def _run(self) -> None:
        while True:
            try:
                self.measure()
            except (OSError, psutil.Error) as error:  # the next measurement may succeed
                log.debug("this worker cannot be measured: %s", error)
            if self._ended.wait(self._interval_s):
                return
