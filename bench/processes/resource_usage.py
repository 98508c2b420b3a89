"""Resource usage of process trees: CPU seconds and peak memory."""

import resource
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import psutil
from redis import Redis

#: Seconds between two samples of memory.
SAMPLE_S = 0.25


def tree(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants; an empty list if it has ended."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process tree so far, including descendants that ended and were reaped.

    Only the difference of two readings is meaningful, provided that no process left the tree in between."""
    total_s = 0.0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


@dataclass(frozen=True, slots=True)
class SystemCpu:
    """CPU seconds (user and system) of a system under test; only the difference of two readings is meaningful."""

    submitter_s: float
    """CPU of the calling process with its threads, without its child processes (workers, Redis, a development API).

    It submits jobs and waits for them, as the web process does."""
    workers_s: float
    """CPU of every process below the launchers: supervisors, Celery parents and children, including ended processes."""
    redis_s: float

    @classmethod
    def used_so_far(cls, launchers: Sequence[int], redis_url: str) -> Self:
        own = resource.getrusage(resource.RUSAGE_SELF)
        with Redis.from_url(redis_url) as redis:
            server: dict[str, Any] = redis.info("cpu")
        return cls(
            submitter_s=own.ru_utime + own.ru_stime,
            workers_s=sum(cpu_s(pid) for pid in launchers),
            redis_s=server["used_cpu_user"] + server["used_cpu_sys"],
        )

    @property
    def ours_s(self) -> float:
        """CPU of Assay's own processes: without Redis."""
        return self.submitter_s + self.workers_s

    def __sub__(self, earlier: "SystemCpu") -> "SystemCpu":
        return SystemCpu(
            submitter_s=self.submitter_s - earlier.submitter_s,
            workers_s=self.workers_s - earlier.workers_s,
            redis_s=self.redis_s - earlier.redis_s,
        )


def memory_mb(pid: int) -> float:
    """Return the memory in MB that would be free without the process tree.

    Pages that several processes share count once (PSS). Forked workers share most of their pages: resident sizes would
    count them repeatedly, to the disadvantage of peers that fork."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            info = process.memory_full_info()
            total += getattr(info, "pss", info.uss)
    return total / 2**20


class Peak:
    """Highest memory sample so far."""

    mb = 0.0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """Record the peak memory of the process tree during the block. Sampling costs CPU: do not time anything inside."""
    peak, ended = Peak(), threading.Event()

    def sample() -> None:
        while True:
            peak.mb = max(peak.mb, memory_mb(pid))
            if ended.wait(SAMPLE_S):
                return

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
