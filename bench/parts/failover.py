"""Benchmark of failovers: the primary of the state Redis is killed under load. `python -m bench failover`.

A replica is cut off some time before the primary dies, so that it lacks that last moment; then three Sentinels promote
it. If each write waits for a replica, there are two, and one of them is cut off. State, broker and cache are the same
Redis. Each trial counts the jobs that the server had accepted: hung (not ended), lost (unknown now) and double (with
more outcomes than items), and the items that ran twice.
"""

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from redis.exceptions import RedisError

from bench.processes.replicated_redis import replicated_redis
from bench.processes.stack import Stack
from bench.report.figures import line, note
from tasks.errors import AssayError, UnknownJob
from tasks.jobs.execution.retry_redis import retry_redis
from tasks.measurement.spread import spread_of

#: Seconds by which the replica lags behind; and whether each write waits for the replica.
CASES = ((0.0, False), (0.05, False), (0.2, False), (1.0, False), (0.2, True))
#: Seconds of load before the replica is cut off.
LOAD_S = 2.0
#: Seconds after the failover after which a job that has not ended counts as hung.
HUNG_S = 60.0
ITEMS = 40


@dataclass(frozen=True, slots=True)
class Trial:
    accepted: int
    hung: int
    lost: int
    double: int
    repeated: int
    """Items that ran more than once."""
    failover_s: float


def run_trial(lag_s: float, waits: bool, password: str = "") -> Trial:
    with tempfile.TemporaryDirectory() as name, replicated_redis(Path(name), 1 + waits, password) as redis:
        folder = Path(name)
        journal = folder / "journal"
        stack = Stack(redis.url, folder)
        stack.configure(redis_replicas=int(waits))
        environment = {"ASSAY_REDIS_REPLICAS": str(int(waits)), "ASSAY_SIMULATED_JOURNAL": str(journal)}
        with stack.workers(2, cpu=1, environment=environment):
            accepted: list[str] = []
            stop = threading.Event()
            client = threading.Thread(target=_submit_until, args=(stack, accepted, stop))
            client.start()
            time.sleep(LOAD_S)
            if lag_s:
                redis.lag()
                time.sleep(lag_s)
            redis.kill_primary()
            failover_s = redis.wait_for_failover()
            stop.set()
            client.join()
            hung, lost, double = _judge(stack, accepted)
            ran = Counter(journal.read_text().split()) if journal.exists() else Counter[str]()
        repeated = sum(number - 1 for number in ran.values())
        return Trial(len(accepted), hung, lost, double, repeated, failover_s)


def _submit_until(stack: Stack, accepted: list[str], stop: threading.Event) -> None:
    """Submit jobs of one and of two stages until told to stop. A refused submit is not accepted: its client knows."""
    number = 0
    while not stop.is_set():
        number += 1
        items = [{"id": f"{number}.{x}", "x": ITEMS * number + x, "group_id": str(x // 4)} for x in range(ITEMS)]
        stages = [{"name": "run", "pool": "device"}, {"name": "join", "grouped": True}][: 1 + number % 2]
        spec = {"cost_s": 0.005, "batch_items": 4, "stages": stages}
        with suppress(AssayError, RedisError, OSError):
            accepted.append(stack.submit(items, spec=spec, cache="off"))
        time.sleep(0.05)


def _judge(stack: Stack, accepted: Sequence[str]) -> tuple[int, int, int]:
    hung = lost = double = 0
    deadline = time.monotonic() + HUNG_S
    for job_id in accepted:
        try:
            job = retry_redis(partial(stack.core.store.job, job_id))
            while job.is_active and time.monotonic() < deadline:
                time.sleep(0.05)
                job = retry_redis(partial(stack.core.store.job, job_id))
        except UnknownJob:
            lost += 1
            continue
        hung += job.is_active
        double += job.ok + job.failed > job.total
        if not job.is_active and job.ok != job.total:
            note(f"job {job_id} ended as {job.state} with {job.ok} of {job.total}: {job.reasons}")
    return hung, lost, double


def main(trials: int) -> None:
    for lag_s, waits in CASES:
        done = [run_trial(lag_s, waits) for _ in range(trials)]
        name = f"lag {1000 * lag_s:.0f} ms{', each write waits for the replica' if waits else ''}"
        jobs = sum(trial.accepted for trial in done)
        repeated = sum(trial.repeated for trial in done)
        seconds = spread_of([trial.failover_s for trial in done])
        note(f"{name}: {trials} failovers in {seconds} s, {jobs} jobs accepted, {repeated} items ran twice")
        for fault, target in (("hung", "<= 0"), ("double", "<= 0"), ("lost", "<= 0" if waits or not lag_s else "none")):
            numbers = [float(getattr(trial, fault)) for trial in done]
            line(f"{name}: jobs {fault} in all", spread_of([sum(numbers)]), target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.parts.failover", description="Benchmark of failovers.")
    parser.add_argument("--trials", type=int, default=10, help="number of failovers of each case (10)")
    main(parser.parse_args().trials)
