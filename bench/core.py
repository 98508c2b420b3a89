"""The job core against its targets: `python -m bench.core`. Takes about three minutes."""

import os
import signal
import threading
import time
from statistics import median

from bench import bare_celery
from bench.spread import line, repeat
from bench.stack import Stack, stack
from config import keys


def free_items(stand: Stack) -> None:
    with bare_celery.worker(stand.url, children=2):
        bare = repeat(lambda: bare_celery.items_per_second(1000), 3)
        trip = median(bare_celery.round_trip_s() for _ in range(200))
    with stand.workers(2):
        ours = repeat(lambda: 10_000 / stand.run([{"x": x} for x in range(10_000)]), 5)
        single = median(stand.run([{"x": 1}], priority="interactive") for _ in range(200))
    print(
        f"  bare Celery {bare} items/s, Assay {ours} items/s; one item {1000 * trip:.2f} ms and {1000 * single:.2f} ms"
    )
    line("10,000 near-free items, rate over one task per item", ours.middle / bare.middle, ">= 20")
    line("one-item job, p50 over a bare round trip", single / trip, "<= 3")


def cached_job(stand: Stack) -> None:
    with stand.workers(2):
        ratios = []
        for seed in range(5):
            spec = {"cost_s": 0.001, "cacheable": True, "seed": seed}
            items = [{"x": x} for x in range(1000)]
            ratios.append(stand.run(items, spec=spec) / stand.run(items, spec=spec))
    print(f"  {', '.join(f'{ratio:.1f}' for ratio in sorted(ratios))}")
    line("1,000 cached items, first run (1 ms each) over second", median(ratios), ">= 10")


def devices(stand: Stack) -> None:
    """A job of a minute on one device."""
    items = [{"x": x} for x in range(1200)]
    spec = {"cost_s": 0.05, "batch_items": 2}
    with stand.workers(1):
        one = stand.run(items, spec=spec)
    with stand.workers(8):
        eight = repeat(lambda: stand.run(items, spec=spec), 3)
    with stand.workers(8, slow=1):
        mixed = repeat(lambda: stand.run(items, spec=spec), 3)
    ideal = one / 7.25  # the slow one is a quarter of a device
    print(f"  one device {one:.2f} s, eight {eight} s; one of them 4 times slower {mixed} s, ideal {ideal:.2f} s")
    line("sleeping engine, one device over eight", one / eight.middle, ">= 7.5")
    line("one of eight devices 4 times slower, over the ideal", mixed.middle / ideal, "<= 1.1")


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

        together = repeat(at_once, 5)
    print(f"  in turn {in_turn:.2f} s, at once {together} s")
    line("64 one-item jobs on a batch engine, in turn over at once", in_turn / together.middle, ">= 8")


def takeover(stand: Stack) -> None:
    """From kill -9 of a busy worker, with all below it, to its chunk running on an idle one."""
    waits = []
    with stand.workers(2):
        for _ in range(3):
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
    print(f"  {', '.join(f'{wait:.2f} s' for wait in waits)}")
    line("kill -9 to the chunk running elsewhere, seconds", max(waits), "<= 3")


def main() -> None:
    for measure in (free_items, cached_job, devices, adoption, takeover):
        with stack() as stand:
            measure(stand)


if __name__ == "__main__":
    main()
