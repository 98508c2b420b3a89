"""Benchmark of job size: 1,000,000 items against 1,000. `python -m bench.parts.large [ITEMS]`.

Takes about three minutes. Measures the cost per item, the memory growth of each process and of Redis, and slow Redis
commands.
"""

import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain

import psutil

from bench.processes.stack import Stack, running_stack
from bench.report.figures import brief, line, note, repeat
from tasks.jobs.model import JobHead
from tasks.measurement.spread import spread_of

MB = 1 << 20
SLOW_MS = 20


class PeakMemory:
    """Samples memory in the background: the peak of each process (resident) and of Redis (`used_memory`)."""

    def __init__(self, stack: Stack, launchers: list[int]) -> None:
        self._stack = stack
        self._launchers = launchers
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_loop)
        self.peak: dict[str, int] = {}

    def __enter__(self) -> "PeakMemory":
        self._sample()
        self.first = dict(self.peak)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def growth_mb(self) -> dict[str, float]:
        return {name: (peak - self.first.get(name, 0)) / MB for name, peak in self.peak.items()}

    def _sample_loop(self) -> None:
        while not self._ended.wait(0.5):
            self._sample()

    def _sample(self) -> None:
        found = {"redis": int(self._stack.core.state.info("memory")["used_memory"])}
        ours = [psutil.Process()] + [psutil.Process(pid) for pid in self._launchers]
        for process in chain(ours, *(each.children(recursive=True) for each in ours[1:])):
            found[f"{process.pid}"] = process.memory_info().rss
        self.peak = {name: max(found.get(name, 0), self.peak.get(name, 0)) for name in found.keys() | self.peak.keys()}


def run(stack: Stack, number: int) -> float:
    """Run a job of `number` items. Returns the seconds per item, from the first input line to the last result."""
    lines: Iterator[bytes] = (b'{"id": "item-%d", "x": %d}' % (x, x) for x in range(number))
    started = time.perf_counter()
    job_id = stack.core.submitter.submit_lines(JobHead(kind="simulated", cache="off"), lines)
    ended = stack.finish(job_id)
    rows = sum(piece.count(b"\n") for piece in stack.core.results.lines(ended))
    assert rows == number == ended.ok
    return (time.perf_counter() - started) / number


def main() -> None:
    number = int(sys.argv[1]) if sys.argv[1:] else brief(1_000_000, 20_000)
    with running_stack() as stack, stack.workers(2, cpu=1) as launchers:
        state = stack.core.state
        run(stack, 20_000)  # warm up
        small = repeat(lambda: run(stack, 1000), brief(9))
        state.config_set("slowlog-log-slower-than", SLOW_MS * 1000)
        state.slowlog_reset()
        with PeakMemory(stack, launchers) as memory:
            large = run(stack, number)
        slow = [(entry["duration"] / 1000, entry["command"][:60]) for entry in state.slowlog_get(10)]
        growth = memory.growth_mb()
        redis_mb = growth.pop("redis")
    note(
        f"1,000 items {1e6 * small.middle:.1f} us each ({1e6 * small.least:.1f} to {1e6 * small.most:.1f}), "
        f"{number:,} items {large * 1e6:.1f} us each ({1 / large:,.0f}/s)"
    )
    note(f"growth in MB: redis {redis_mb:.0f}, processes {', '.join(f'{each:.0f}' for each in growth.values())}")
    for duration_ms, command in slow:
        note(f"slow Redis command: {duration_ms:.1f} ms {command!r}")
    line(f"{number:,} items, cost per item over that of 1,000 items", spread_of([large]).over(small), "< 1.25")
    line("growth of the largest process, MB", max(growth.values()), "< 200")
    line("growth of Redis, MB", redis_mb, "< 200")
    line(f"Redis commands above {SLOW_MS} ms", len(slow), "0")


if __name__ == "__main__":
    main()
