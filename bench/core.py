"""The job core against its targets: `python -m bench.core`. Takes about three minutes."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from statistics import median

from bench import bare_celery
from bench.spread import Spread, brief, line, note, repeat, spread
from bench.stack import Stack, measure_all
from config import keys


def free_items(stand: Stack) -> None:
    with bare_celery.worker(stand.url, children=2):
        bare = repeat(lambda: bare_celery.items_per_second(brief(1000, 50)), brief(3))
        trip = repeat(lambda: _median_of(bare_celery.round_trip_s), brief(3))
    with stand.workers(2):
        ours = repeat(lambda: 10_000 / stand.run([{"x": x} for x in range(10_000)]), brief(5))
        single = repeat(lambda: _median_of(lambda: stand.run([{"x": 1}], priority="interactive")), brief(3))
    note(
        f"bare Celery {bare} items/s, Assay {ours} items/s; "
        f"one item {1000 * trip.middle:.2f} ms and {1000 * single.middle:.2f} ms"
    )
    line("10,000 near-free items, rate over one task per item", ours.over(bare), ">= 20")
    line("one-item job, p50 over a bare round trip", single.over(trip), "<= 3")


def _median_of(measure: Callable[[], float]) -> float:
    return median(measure() for _ in range(brief(70, 5)))


def cached_job(stand: Stack) -> None:
    with stand.workers(2):
        ratios = []
        for seed in range(brief(5)):
            spec = {"cost_s": 0.001, "cacheable": True, "seed": seed}
            items = [{"x": x} for x in range(1000)]
            ratios.append(stand.run(items, spec=spec) / stand.run(items, spec=spec))
    line("1,000 cached items, first run (1 ms each) over second", spread(ratios), ">= 10")


def devices(stand: Stack) -> None:
    """A job of a minute on one device."""
    items = [{"x": x} for x in range(brief(1200, 100))]
    spec = {"cost_s": 0.05, "batch_items": 2}
    with stand.workers(1):
        one = stand.run(items, spec=spec)
    with stand.workers(8):
        eight = repeat(lambda: stand.run(items, spec=spec), brief(3))
    with stand.workers(8, slow=1):
        mixed = repeat(lambda: stand.run(items, spec=spec), brief(3))
    ideal = one / 7.25  # the slow one is a quarter of a device
    note(f"one device {one:.2f} s, eight {eight} s; one of them 4 times slower {mixed} s, ideal {ideal:.2f} s")
    line("sleeping engine, one device over eight", spread([one]).over(eight), ">= 7.5")
    line("one of eight devices 4 times slower, over the ideal", mixed.over(ideal), "<= 1.1")


def adoption(stand: Stack) -> None:
    spec = {"batch_cost_s": 0.05, "batch_items": 64}
    with stand.workers(1):
        started = time.perf_counter()
        for x in range(64):
            stand.run([{"x": x}], spec=spec)
        in_turn = time.perf_counter() - started

        def at_once() -> float:
            started = time.perf_counter()
            threads = [threading.Thread(target=stand.run, args=([{"x": x}],), kwargs={"spec": spec}) for x in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return time.perf_counter() - started

        together = repeat(at_once, brief(5))
    note(f"in turn {in_turn:.2f} s, at once {together} s")
    line("64 one-item jobs on a batch engine, in turn over at once", spread([in_turn]).over(together), ">= 8")


def takeover(stand: Stack) -> None:
    """From kill -9 of a busy worker, with all below it, to its chunk running on an idle one."""
    waits = []
    with stand.workers(2):
        for _ in range(brief(3)):
            job = stand.submit([{"x": 1}], spec={"cost_s": 3.0})
            while not (holders := stand.core.state.smembers(keys.holders())):
                time.sleep(0.01)
            first = str(next(iter(holders)))
            worker = stand.core.registry.get(first.split("/")[0])
            assert worker
            os.killpg(worker.pid, signal.SIGKILL)
            killed = time.perf_counter()
            while not (stand.core.state.smembers(keys.holders()) - {first}):
                time.sleep(0.01)
            waits.append(time.perf_counter() - killed)
            stand.finish(job)
            while sum(w.state == "ready" for w in stand.core.registry.workers()) < 2:
                time.sleep(0.1)
    longest = max(waits)
    line("kill -9 to the chunk running elsewhere, seconds, the longest", Spread(longest, min(waits), longest), "<= 3")


def main() -> int:
    return measure_all(free_items, cached_job, devices, adoption, takeover)


if __name__ == "__main__":
    sys.exit(main())
