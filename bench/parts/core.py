"""Benchmark of the job core: throughput, latency, scaling over devices and failover. `python -m bench core`.

Takes about three minutes.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from statistics import median

from bench.baselines import bare_celery
from bench.processes.stack import Stack, measure_all
from bench.report.figures import brief, line, note, repeat
from config import keys
from tasks.measurement.spread import Spread, spread_of


def free_items(stack: Stack) -> None:
    with bare_celery.worker(stack.url, children=2):
        bare = repeat(lambda: bare_celery.items_per_second(brief(1000, 50)), brief(3))
        trip = repeat(lambda: _median_of(bare_celery.round_trip_s), brief(3))
    with stack.workers(2):
        ours = repeat(lambda: 10_000 / stack.run([{"x": x} for x in range(10_000)]), brief(5))
        single = repeat(lambda: _median_of(lambda: stack.run([{"x": 1}], priority="interactive")), brief(3))
    note(
        f"bare Celery {bare} items/s, Assay {ours} items/s; "
        f"single item {1000 * trip.middle:.2f} ms and {1000 * single.middle:.2f} ms"
    )
    line("10,000 near-free items, rate over bare Celery with a task per item", ours.over(bare), ">= 20")
    line("single-item job, p50 over a bare Celery round trip", single.over(trip), "<= 3")


def _median_of(measure: Callable[[], float]) -> float:
    return median(measure() for _ in range(brief(70, 5)))


def cached_job(stack: Stack) -> None:
    with stack.workers(2):
        ratios = []
        for seed in range(brief(5)):
            spec = {"cost_s": 0.001, "cacheable": True, "seed": seed}
            items = [{"x": x} for x in range(1000)]
            ratios.append(stack.run(items, spec=spec) / stack.run(items, spec=spec))
    line("1,000 cached items, first run (1 ms each) over second", spread_of(ratios), ">= 10")


def devices(stack: Stack) -> None:
    """Run a job that takes a minute on a single device: on 1, on 8, and on 8 of which 1 is four times slower."""
    items = [{"x": x} for x in range(brief(1200, 100))]
    spec = {"cost_s": 0.05, "batch_items": 2}
    with stack.workers(1):
        one = stack.run(items, spec=spec)
    with stack.workers(8):
        eight = repeat(lambda: stack.run(items, spec=spec), brief(3))
    with stack.workers(8, slow=1):
        mixed = repeat(lambda: stack.run(items, spec=spec), brief(3))
    ideal = one / 7.25  # the slow device counts as a quarter
    note(f"1 device {one:.2f} s, 8 devices {eight} s; with a slow device among the 8 {mixed} s, ideal {ideal:.2f} s")
    line("sleeping engine, time on 1 device over 8", spread_of([one]).over(eight), ">= 7.5")
    line("8 devices, 1 of them 4 times slower, time over the ideal", mixed.over(ideal), "<= 1.1")


def adoption(stack: Stack) -> None:
    """Run 64 single-item jobs sequentially, and concurrently, so that a worker can batch their items."""
    spec = {"batch_cost_s": 0.05, "batch_items": 64}
    with stack.workers(1):
        started = time.perf_counter()
        for x in range(64):
            stack.run([{"x": x}], spec=spec)
        sequential = time.perf_counter() - started

        def run_concurrently() -> float:
            started = time.perf_counter()
            threads = [threading.Thread(target=stack.run, args=([{"x": x}],), kwargs={"spec": spec}) for x in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return time.perf_counter() - started

        concurrent = repeat(run_concurrently, brief(5))
    note(f"sequential {sequential:.2f} s, concurrent {concurrent} s")
    line(
        "64 single-item jobs on a batch engine, sequential over concurrent",
        spread_of([sequential]).over(concurrent),
        ">= 8",
    )


def takeover(stack: Stack) -> None:
    """Measure failover: from kill -9 of a busy worker and its children until an idle worker runs its chunk."""
    waits = []
    with stack.workers(2):
        for _ in range(brief(3)):
            job_id = stack.submit([{"x": 1}], spec={"cost_s": 3.0})
            while not (holders := stack.core.state.smembers(keys.holders())):
                time.sleep(0.01)
            first = str(next(iter(holders)))
            worker = stack.core.registry.get(first.split("/")[0])
            assert worker
            os.killpg(worker.pid, signal.SIGKILL)
            killed = time.perf_counter()
            while not (stack.core.state.smembers(keys.holders()) - {first}):
                time.sleep(0.01)
            waits.append(time.perf_counter() - killed)
            stack.finish(job_id)
            while sum(w.state == "ready" for w in stack.core.registry.workers()) < 2:
                time.sleep(0.1)
    longest = max(waits)
    line("failover after kill -9 of a worker, longest of all, seconds", Spread(longest, min(waits), longest), "<= 3")


def main() -> int:
    return measure_all(free_items, cached_job, devices, adoption, takeover)


if __name__ == "__main__":
    sys.exit(main())
