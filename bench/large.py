"""A job of 1,000 items against one of 1,000,000: `python -m bench.large [ITEMS]`. Takes about three minutes.

Cost per item, memory of every process and of Redis, and the slowest Redis command.
"""

import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain

import psutil

from bench.spread import brief, line, note, repeat, spread
from bench.stack import Stack, stack
from tasks.jobs.model import JobHead

MB = 1 << 20
SLOW_MS = 20


class Memory:
    """The most that each process, and Redis by its own account, came to use."""

    def __init__(self, stand: Stack, launchers: list[int]) -> None:
        self._stand = stand
        self._launchers = launchers
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.most: dict[str, int] = {}

    def __enter__(self) -> "Memory":
        self._look()
        self.first = dict(self.most)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def growth_mb(self) -> dict[str, float]:
        return {name: (most - self.first.get(name, 0)) / MB for name, most in self.most.items()}

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            self._look()

    def _look(self) -> None:
        found = {"redis": int(self._stand.core.state.info("memory")["used_memory"])}
        ours = [psutil.Process()] + [psutil.Process(pid) for pid in self._launchers]
        for process in chain(ours, *(each.children(recursive=True) for each in ours[1:])):
            found[f"{process.pid}"] = process.memory_info().rss
        self.most = {name: max(found.get(name, 0), self.most.get(name, 0)) for name in found.keys() | self.most.keys()}


def run(stand: Stack, number: int) -> float:
    """Seconds per item, from the first line to the last result."""
    lines: Iterator[bytes] = (b'{"id": "item-%d", "x": %d}' % (x, x) for x in range(number))
    started = time.perf_counter()
    job = stand.core.door.submit_lines(JobHead(kind="simulated", cache="off"), lines)
    ended = stand.finish(job)
    rows = sum(piece.count(b"\n") for piece in stand.core.results.lines(ended))
    assert rows == number == ended.ok
    return (time.perf_counter() - started) / number


def main() -> None:
    number = int(sys.argv[1]) if sys.argv[1:] else brief(1_000_000, 20_000)
    with stack() as stand, stand.workers(2, cpu=1) as launchers:
        state = stand.core.state
        run(stand, 20_000)  # warm
        small = repeat(lambda: run(stand, 1000), brief(9))
        state.config_set("slowlog-log-slower-than", SLOW_MS * 1000)
        state.slowlog_reset()
        with Memory(stand, launchers) as memory:
            large = run(stand, number)
        slow = [(entry["duration"] / 1000, entry["command"][:60]) for entry in state.slowlog_get(10)]
        growth = memory.growth_mb()
        redis_mb = growth.pop("redis")
    note(
        f"1,000 items {1e6 * small.middle:.1f} us each ({1e6 * small.least:.1f} to {1e6 * small.most:.1f}), "
        f"{number:,} items {large * 1e6:.1f} us each ({1 / large:,.0f}/s)"
    )
    note(f"growth in MB: redis {redis_mb:.0f}, processes {', '.join(f'{each:.0f}' for each in growth.values())}")
    for duration_ms, command in slow:
        note(f"slow: {duration_ms:.1f} ms {command!r}")
    line(f"{number:,} items, cost of one over that in 1,000", spread([large]).over(small), "< 1.25")
    line("growth of the largest process, MB", max(growth.values()), "< 200")
    line("growth of Redis, MB", redis_mb, "< 200")
    line(f"Redis commands above {SLOW_MS} ms", len(slow), "0")


if __name__ == "__main__":
    main()
