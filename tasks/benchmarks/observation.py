"""What the system does while a case is measured: how busy its devices are, what memory it takes, who else works.

A thread that looks at the ledger ten times a second, and at the registry once. GPUs are those that workers tell of.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

from redis.exceptions import RedisError

from config import keys
from config.queues import BENCHMARK
from tasks.jobs.core import JobCore
from tasks.registry import Worker

log = logging.getLogger(__name__)

LOOK_S = 0.1
#: Looks between two at the registry and at Redis's own memory.
EVERY = 10


@dataclass(slots=True)
class Observation:
    devices: Sequence[Worker] = ()
    """Those that may work on the case."""
    own: Collection[str] = ()
    """The jobs of the case; a job is at work before whoever submits it knows its name, so this may grow."""
    looks: int = 0
    busy: int = 0
    """Times that one of them was seen at work, over all of them."""
    seen: set[str] = field(default_factory=set)
    """Jobs that were at work."""
    memory_mb: float = 0.0
    """Of all workers and of Redis, at most."""
    lost: set[str] = field(default_factory=set)
    """Devices that went away, or began anew."""
    gpu_memory_mb: float = 0.0
    gpu_shares: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        found = {"memory_mb": self.memory_mb}
        if self.looks and self.devices:
            found["device_utilisation"] = self.busy / (self.looks * len(self.devices))
        if self.gpu_shares:
            found["gpu_utilisation"] = fmean(self.gpu_shares)
        if self.gpu_memory_mb:
            found["gpu_memory_mb"] = self.gpu_memory_mb
        return found

    @property
    def foreign(self) -> set[str]:
        """Jobs of others among them."""
        return self.seen - set(self.own)

    @property
    def disturbed(self) -> str:
        number, reasons = len(self.foreign), []
        if number:
            reasons.append(f"{number} other job{'s' if number > 1 else ''} ran meanwhile")
        if self.lost:
            reasons.append(f"{', '.join(sorted(self.lost))} went away meanwhile")
        return "; ".join(reasons)

    @property
    def queues(self) -> list[str]:
        return [device.queues[0] for device in self.devices]


@contextmanager
def observe(core: JobCore, devices: Sequence[Worker], own: Collection[str]) -> Iterator[Observation]:
    observation, ended = Observation(devices, own), threading.Event()

    def watch() -> None:
        looks = 0
        while True:
            try:
                if looks:  # the first one would only see that nothing has begun
                    _look(core, observation)
                if looks % EVERY == 0:
                    _look_at_workers(core, observation)
            except RedisError as error:  # what is measured notices that itself
                log.debug("not looking: %s", error)
            looks += 1
            if ended.wait(LOOK_S):
                return

    thread = threading.Thread(target=watch, name="observation", daemon=True)
    thread.start()
    try:
        yield observation
    finally:
        ended.set()
        thread.join()
        _look_at_workers(core, observation)  # a case may be over before the next look


def _look(core: JobCore, observation: Observation) -> None:
    pipeline = core.state.pipeline(transaction=False)
    others = {str(queue) for queue in core.state.smembers(keys.queues())} - {*observation.queues, BENCHMARK}
    for queue in (*observation.queues, *sorted(others)):
        pipeline.smembers(keys.running(queue))
    found: list[set[str]] = pipeline.execute()
    observation.looks += 1
    observation.busy += sum(bool(chunks) for chunks in found[: len(observation.queues)])
    observation.seen |= {job_of(chunk) for chunks in found for chunk in chunks}


def job_of(chunk: str) -> str:
    return chunk.rpartition(".")[0]


def _look_at_workers(core: JobCore, observation: Observation) -> None:
    workers = core.registry.workers()
    alive = {worker.incarnation for worker in workers}
    observation.lost |= {device.name for device in observation.devices if device.incarnation not in alive}
    redis_mb = float(core.state.info("memory")["used_memory"]) / 1e6
    observation.memory_mb = max(observation.memory_mb, redis_mb + sum(worker.memory_mb for worker in workers))
    gpus = {gpu.uuid: gpu for worker in workers for gpu in worker.gpus}.values()  # workers may share one
    shares = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
    observation.gpu_shares += [fmean(shares)] if shares else []
    observation.gpu_memory_mb = max(observation.gpu_memory_mb, sum(gpu.memory_used_mb for gpu in gpus))


def settle(core: JobCore, own: Collection[str], wait_s: float = 5.0) -> None:
    """Wait a little until nothing of an earlier case runs any more."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        observation = Observation()
        _look(core, observation)
        if not observation.seen & set(own):
            return
        time.sleep(LOOK_S)
