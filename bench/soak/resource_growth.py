"""Resource monitor: samples memory, descriptors and threads of every process, and estimates their growth.

A restarted process is measured separately. The warm-up of each process is skipped; growth is the Theil-Sen slope of the
remaining samples (the median slope of all pairs), which is robust against peaks.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from bench.soak.findings import Accounting
from bench.soak.system_under_test import System, tolerate_outage

MB = 1 << 20
#: Seconds between two samples.
SAMPLE_S = 3.0
#: Warm-up of a process in seconds, in which it imports, loads and fills caches.
WARM_UP_S = 120.0
#: Minimum span of samples after the warm-up, in seconds: the slope of a shorter span is that of the load. A run of four
#: minutes measured +104 descriptors per ten minutes in the development API, which had 24 fewer at the end than before.
MIN_SPAN_S = 240.0
#: Maximum number of samples that a slope is computed from.
MAX_SAMPLES = 150


@dataclass(frozen=True, slots=True)
class Bound:
    """Limit of growth, per ten minutes and in total: a finding needs both, because a short run shows mostly noise."""

    per_10_min: float
    total: float


#: Resident memory in MB. Fragmentation alone adds some tenths of an MB per minute to a Python process with threads.
MEMORY = Bound(20.0, 5.0)
#: `used_memory` of Redis in MB, without fragmentation; it includes the jobs that exist at the moment.
REDIS = Bound(10.0, 5.0)
#: Descriptors and threads: connection and thread pools grow to the highest concurrency so far.
DESCRIPTORS, THREADS = Bound(50.0, 20.0), Bound(15.0, 10.0)


@dataclass(slots=True)
class ProcessSamples:
    """Samples of a process: (seconds, MB, descriptors, threads)."""

    role: str
    samples: list[tuple[float, float, int, int]] = field(default_factory=list)

    def add(self, at: float, memory_mb: float, descriptors: int, threads: int) -> None:
        self.samples.append((at, memory_mb, descriptors, threads))


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of a resource over the samples of a process."""

    first: float
    middle: float
    last: float
    seconds: float
    """Span of the measured samples."""
    per_10_min: float | None
    """Slope; None if the span is too short."""

    def exceeds(self, bound: Bound) -> bool:
        rate = self.per_10_min
        return rate is not None and rate > bound.per_10_min and rate * self.seconds / 600 > bound.total


def growth_of(
    samples: Sequence[tuple[float, float]],
    since: float = 0.0,
    warm_up_s: float = WARM_UP_S,
    min_span_s: float = MIN_SPAN_S,
) -> Growth:
    """Estimate the growth of ordered samples (seconds, value).

    Samples before `since` and in the first `warm_up_s` seconds are skipped. If the rest spans less than `min_span_s`
    seconds, the slope is None."""
    values = [value for _, value in samples]
    rest = [(at, value) for at, value in samples if at >= max(since, samples[0][0] + warm_up_s)]
    span = rest[-1][0] - rest[0][0] if rest else 0.0
    rate = slope(rest) * 600 if span >= min_span_s else None
    return Growth(values[0], median(values), values[-1], span, rate)


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Return the Theil-Sen slope: the median of the slopes of all pairs of samples."""
    step = max(1, len(samples) // MAX_SAMPLES)
    chosen = samples[::step]
    slopes = [
        (later - value) / (then - at)
        for i, (at, value) in enumerate(chosen)
        for then, later in chosen[i + 1 :]
        if then > at
    ]
    return median(slopes) if slopes else 0.0


class ResourceMonitor:
    """Samples the processes of a system and its Redis servers in a thread."""

    def __init__(self, system: System, accounting: Accounting) -> None:
        self._system, self._accounting = system, accounting
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resource monitor")
        self.processes: dict[str, ProcessSamples] = {}
        self.redis: dict[str, list[tuple[float, float]]] = {"state": [], "cache": []}
        self.started = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            with self._accounting.recording("soak", "resource monitor"):
                self.sample()
            self._over.wait(SAMPLE_S)

    def sample(self) -> None:
        at = time.monotonic() - self.started
        for part in self._system.parts():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                with part.process.oneshot():
                    memory = part.process.memory_info().rss / MB
                    threads = part.process.num_threads()
                descriptors = part.process.num_fds()
                process = self.processes.setdefault(part.name, ProcessSamples(part.role))
                process.add(at, memory, descriptors, threads)
        for name, client in (("state", self._system.state), ("cache", self._system.cache)):
            with tolerate_outage():
                self.redis[name].append((at, self.redis_mb(client)))

    def write(self, path: Path) -> None:
        """Write all samples as CSV, for the analysis of a surprising figure."""
        with path.open("w") as file:
            file.write("part,seconds,memory_mb,descriptors,threads\n")
            for name, process in self.processes.items():
                for at, memory, descriptors, threads in process.samples:
                    file.write(f"{name},{at:.0f},{memory:.1f},{descriptors},{threads}\n")
            for name, samples in self.redis.items():
                file.writelines(f"used_memory of {name},{at:.0f},{memory:.2f},,\n" for at, memory in samples)

    @staticmethod
    def redis_mb(client: object) -> float:
        memory = client.info("memory")  # type: ignore[attr-defined]
        return float(memory["used_memory"]) / MB
