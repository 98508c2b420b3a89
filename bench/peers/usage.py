"""What a tree of processes used: CPU seconds, and memory at its peak."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

#: Seconds between two looks at the memory.
EVERY_S = 0.25


def tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def cpu_s(pid: int) -> float:
    """CPU seconds of all processes of the tree so far, with those that died: whoever waited for a child has its time.

    Only a difference means something, and only if no process was taken out of the tree in between."""
    total_s = 0.0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def memory_mb(pid: int) -> float:
    """Memory that would be free without the tree. Pages shared by several processes count once (PSS): forked workers
    share most of theirs, and counting them for each would make a straw man of every peer that forks."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            info = process.memory_full_info()
            total += getattr(info, "pss", info.uss)
    return total / 2**20


class Peak:
    mb = 0.0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """The most memory the tree had while the block lasted. Looking costs CPU: nothing is timed meanwhile."""
    peak, ended = Peak(), threading.Event()

    def look() -> None:
        while True:
            peak.mb = max(peak.mb, memory_mb(pid))
            if ended.wait(EVERY_S):
                return

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield peak
    finally:
        ended.set()
        watch.join()
