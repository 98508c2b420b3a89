"""What a worker takes of its host: memory and CPU of its processes, the time it was busy, the state of its GPUs.

Measured by a thread of the parent process, for the heartbeat to carry: a driver that hangs stops these figures, and
never the heartbeat.
"""

import logging
import mmap
import struct
import threading
import time
from dataclasses import dataclass, field, replace

import psutil
from celery import signals

from tasks.registry import Gpu, Worker
from workers.devices.nvml import MB, Nvml

log = logging.getLogger(__name__)

#: Measurements between two looks for new processes, which read all of the host's.
LOOK_EVERY = 5
#: Seconds without a word of the driver, which may hang, after which nothing is said of the GPUs.
STALE_S = 30.0

_DOUBLES = struct.Struct("dd")


class BusyClock:
    """Seconds in which at least one task ran. Told by the process that runs them, be it this one or one forked from it,
    and read here: the figures lie in memory that both share."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _DOUBLES.size)
        self._lock = threading.Lock()
        self._running = 0
        self._most = 0.0

    def connect(self) -> None:
        """Count all tasks of this worker."""
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
        # Written while we read, the two may not fit each other: the clock still never goes back.
        self._most = max(self._most, total + (time.monotonic() - since if since else 0.0))
        return self._most


@dataclass
class Tree:
    """This process and all below it."""

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
                    cpu_s += sum(process.cpu_times()[:4])  # with those of children that have ended
                    memory += process.memory_info().rss
            except psutil.Error:  # it ended; its parent counts what it used
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
        """Not before a prefork child has been forked: the driver must not be in use meanwhile."""
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the thread may be in the driver."""
        self._ended.set()

    def upon(self, worker: Worker) -> Worker:
        """The worker with the last figures."""
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
            except (OSError, psutil.Error) as error:  # no reason to end
                log.debug("this worker cannot be measured: %s", error)
            if self._ended.wait(self._interval_s):
                return
