"""What every process holds: memory, descriptors and threads, looked at every few seconds, and whether that grows.

A part that was started again is another life, measured by itself. Of each life the beginning is left out, and growth is
the slope through the rest: the median of the slopes of all pairs (Theil-Sen), which a few peaks do not move.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from bench.soak.books import Books
from bench.soak.system import System, patient

MB = 1 << 20
#: Seconds between two looks.
LOOK_S = 3.0
#: Seconds of a life that are its beginning: what it imports, loads and caches first.
WARM_S = 120.0
#: Seconds of the rest without which a slope says nothing.
LEAST_S = 150.0
#: Looks at the most that a slope is computed from.
MOST_LOOKS = 150


@dataclass(frozen=True, slots=True)
class Bound:
    """Growth that is too much: per ten minutes, and in all, since a short run shows mostly noise."""

    per_10_min: float
    in_all: float


#: Of resident memory in MB. A Python process that runs threads gains some tenths a minute from fragmentation alone.
MEMORY = Bound(20.0, 5.0)
#: Of a Redis by its own account, without fragmentation; the jobs of a moment are in it.
REDIS = Bound(10.0, 5.0)
#: Pools of connections and of threads grow to what was ever needed at a time.
DESCRIPTORS, THREADS = Bound(50.0, 20.0), Bound(15.0, 10.0)


@dataclass(slots=True)
class Life:
    """One start of one part; (seconds, MB, descriptors, threads) at each look."""

    role: str
    looks: list[tuple[float, float, int, int]] = field(default_factory=list)

    def add(self, at: float, memory_mb: float, descriptors: int, threads: int) -> None:
        self.looks.append((at, memory_mb, descriptors, threads))


@dataclass(frozen=True, slots=True)
class Growth:
    first: float
    middle: float
    last: float
    seconds: float
    """How long it was measured."""
    per_10_min: float | None
    """None: not for long enough."""

    def exceeds(self, bound: Bound) -> bool:
        rate = self.per_10_min
        return rate is not None and rate > bound.per_10_min and rate * self.seconds / 600 > bound.in_all


def growth_of(
    looks: Sequence[tuple[float, float]], since: float = 0.0, warm_s: float = WARM_S, least_s: float = LEAST_S
) -> Growth:
    """Of (seconds, value) in order; nothing before `since` counts, nor the first `warm_s` seconds. With less than
    `least_s` left there is no slope."""
    values = [value for _, value in looks]
    rest = [(at, value) for at, value in looks if at >= max(since, looks[0][0] + warm_s)]
    span = rest[-1][0] - rest[0][0] if rest else 0.0
    rate = slope(rest) * 600 if span >= least_s else None
    return Growth(values[0], median(values), values[-1], span, rate)


def slope(looks: Sequence[tuple[float, float]]) -> float:
    step = max(1, len(looks) // MOST_LOOKS)
    chosen = looks[::step]
    slopes = [
        (later - value) / (then - at)
        for i, (at, value) in enumerate(chosen)
        for then, later in chosen[i + 1 :]
        if then > at
    ]
    return median(slopes) if slopes else 0.0


class Watch:
    """Looks at a system until it is told to end."""

    def __init__(self, system: System, books: Books) -> None:
        self._system, self._books = system, books
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch")
        self.lives: dict[str, Life] = {}
        self.redis: dict[str, list[tuple[float, float]]] = {"state": [], "cache": []}
        self.began = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            with self._books.telling("soak", "watch over the memory"):
                self.look()
            self._over.wait(LOOK_S)

    def look(self) -> None:
        at = time.monotonic() - self.began
        for part in self._system.parts():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                with part.process.oneshot():
                    memory = part.process.memory_info().rss / MB
                    threads = part.process.num_threads()
                descriptors = part.process.num_fds()
                life = self.lives.setdefault(part.life, Life(part.role))
                life.add(at, memory, descriptors, threads)
        for name, client in (("state", self._system.state), ("cache", self._system.cache)):
            with patient():
                self.redis[name].append((at, self.redis_mb(client)))

    def write(self, path: Path) -> None:
        """All looks, to be looked into where a figure surprises."""
        with path.open("w") as file:
            file.write("part,seconds,memory_mb,descriptors,threads\n")
            for name, life in self.lives.items():
                for at, memory, descriptors, threads in life.looks:
                    file.write(f"{name},{at:.0f},{memory:.1f},{descriptors},{threads}\n")
            for name, looks in self.redis.items():
                file.writelines(f"used_memory of {name},{at:.0f},{memory:.2f},,\n" for at, memory in looks)

    @staticmethod
    def redis_mb(client: object) -> float:
        told = client.info("memory")  # type: ignore[attr-defined]
        return float(told["used_memory"]) / MB
