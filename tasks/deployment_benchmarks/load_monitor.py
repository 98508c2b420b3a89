"""Load monitor for the measurement of a case: device utilisation, memory, GPUs, and jobs of other users.

A thread samples the ledger ten times per second and the registry once per second. GPU figures come from the workers'
reports.
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
from tasks.jobs.core import JobCore
from tasks.worker_registry import Worker

log = logging.getLogger(__name__)

#: Seconds between two samples of the ledger.
SAMPLE_S = 0.1
#: Ledger samples between two samples of the registry and of Redis's memory.
REGISTRY_EVERY = 10


@dataclass(slots=True)
class Observation:
    """Counts of the samples that were taken while a case was measured."""

    devices: Sequence[Worker] = ()
    """Workers that may run the case."""
    own: Collection[str] = ()
    """Ids of the case's jobs. It grows during the observation: a job runs before its submitter has recorded its id."""
    samples: int = 0
    busy: int = 0
    """Sum, over the samples, of the devices that had a chunk."""
    seen: set[str] = field(default_factory=set)
    """Ids of the jobs that had a running chunk."""
    memory_mb: float = 0.0
    """Peak memory of the workers and Redis together."""
    lost: set[str] = field(default_factory=set)
    """Names of device workers that left or restarted."""
    gpu_memory_mb: float = 0.0
    gpu_shares: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        found = {"memory_mb": self.memory_mb}
        if self.samples and self.devices:
            found["device_utilisation"] = self.busy / (self.samples * len(self.devices))
        if self.gpu_shares:
            found["gpu_utilisation"] = fmean(self.gpu_shares)
        if self.gpu_memory_mb:
            found["gpu_memory_mb"] = self.gpu_memory_mb
        return found

    @property
    def foreign(self) -> set[str]:
        """Running jobs that do not belong to the case."""
        return self.seen - set(self.own)

    @property
    def disturbed(self) -> str:
        """Reason why the measurement is not comparable; empty if it is."""
        number, reasons = len(self.foreign), []
        if number:
            reasons.append(f"{number} other job{'s' if number > 1 else ''} ran concurrently")
        if self.lost:
            reasons.append(f"{', '.join(sorted(self.lost))} left or restarted")
        return "; ".join(reasons)

    @property
    def queues(self) -> list[str]:
        """Device queues of the case."""
        return [device.queues[0] for device in self.devices]


@contextmanager
def observe(core: JobCore, devices: Sequence[Worker], own: Collection[str]) -> Iterator[Observation]:
    """Sample the system in a thread while the block runs."""
    observation, ended = Observation(devices, own), threading.Event()

    def sample() -> None:
        count = 0
        while True:
            try:
                if count:  # skip the first sample: nothing has started yet
                    _sample_ledger(core, observation)
                if count % REGISTRY_EVERY == 0:
                    _sample_workers(core, observation)
            except RedisError as error:  # the measured job reports the outage itself
                log.debug("no sample, as Redis does not answer: %s", error)
            count += 1
            if ended.wait(SAMPLE_S):
                return

    thread = threading.Thread(target=sample, name="observation", daemon=True)
    thread.start()
    try:
        yield observation
    finally:
        ended.set()
        thread.join()
        _sample_workers(core, observation)  # a case may end before its next sample


def _sample_ledger(core: JobCore, observation: Observation) -> None:
    pipeline = core.state.pipeline(transaction=False)
    others = {str(queue) for queue in core.state.smembers(keys.queues())} - {*observation.queues, "benchmark"}
    for queue in (*observation.queues, *sorted(others)):
        pipeline.smembers(keys.running(queue))
    found: list[set[str]] = pipeline.execute()
    observation.samples += 1
    observation.busy += sum(bool(chunks) for chunks in found[: len(observation.queues)])
    observation.seen |= {job_of(chunk) for chunks in found for chunk in chunks}


def job_of(chunk: str) -> str:
    return chunk.rpartition(".")[0]


def _sample_workers(core: JobCore, observation: Observation) -> None:
    workers = core.registry.workers()
    alive = {worker.incarnation for worker in workers}
    observation.lost |= {device.name for device in observation.devices if device.incarnation not in alive}
    redis_mb = float(core.state.info("memory")["used_memory"]) / 1e6
    observation.memory_mb = max(observation.memory_mb, redis_mb + sum(worker.memory_mb for worker in workers))
    gpus = {gpu.uuid: gpu for worker in workers for gpu in worker.gpus}.values()  # workers may share a GPU
    shares = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
    observation.gpu_shares += [fmean(shares)] if shares else []
    observation.gpu_memory_mb = max(observation.gpu_memory_mb, sum(gpu.memory_used_mb for gpu in gpus))


def wait_until_idle(core: JobCore, own: Collection[str], wait_s: float = 5.0) -> None:
    """Wait until no chunk of the jobs runs, for `wait_s` seconds at most."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        observation = Observation()
        _sample_ledger(core, observation)
        if not observation.seen & set(own):
            return
        time.sleep(SAMPLE_S)
