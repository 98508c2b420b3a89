"""Table of pools: per pool its queues, Celery's execution pool, the number of workers per host, and their resources.

A pool is a class of workers, or of work. `policy` is work only: it goes to the queues of device workers that have a
policy server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from config.settings import Settings

#: Pools that have workers.
WorkerPool = Literal["device", "api", "cpu", "benchmark", "beat"]
#: Pools that stages of jobs run on.
StagePool = Literal["device", "api", "cpu", "benchmark", "policy"]

#: `per_slot`: a queue per device slot; `shared`: a single queue with the pool's name, read by workers of every host;
#: `of_device`: the queues of the pool `device`.
Queues = Literal["per_slot", "shared", "of_device", "none"]


def _one_task(settings: Settings) -> int:  # noqa: ARG001  # signature of `Pool.concurrency`
    return 1


@dataclass(frozen=True, slots=True)
class Pool:
    name: str
    queues: Queues
    holds: str
    """Resources that a worker process of the pool keeps loaded for its tasks."""
    celery_pool: Literal["prefork", "threads", ""] = "prefork"
    """Celery's execution pool; empty for a pool without tasks of its own."""
    concurrency: Callable[[Settings], int] = _one_task
    """Maximum concurrent tasks of a worker."""
    workers: Callable[[Settings], tuple[int, int]] | None = None
    """Minimum and maximum workers of a host, scaled by the length of the queue; None: a fixed number."""
    is_required: bool = False
    """Whether the system counts as not ready without a worker of the pool."""

    def starts_on_demand(self, settings: Settings) -> bool:
        """Whether the pool may have no worker while its queue is empty."""
        return self.workers is not None and self.workers(settings)[0] == 0


POOLS: Mapping[str, Pool] = {
    pool.name: pool
    for pool in (
        Pool(
            "device",
            "per_slot",
            "the models of a device slot, loaded and swapped on demand; connections to its policy servers",
            is_required=True,
        ),
        Pool(
            "api",
            "shared",
            "an asyncio loop with the clients of outside APIs",
            celery_pool="threads",
            concurrency=lambda settings: settings.api_threads,
            workers=lambda settings: (settings.api_workers_min, settings.api_workers_max),
            is_required=True,
        ),
        Pool(
            "cpu",
            "shared",
            "scorers, and the process that isolates them",
            workers=lambda settings: (settings.cpu_workers_min, settings.cpu_workers_max),
            is_required=True,
        ),
        # At most one worker: two measurements at once would measure each other.
        Pool("benchmark", "shared", "the scenarios of benchmarks", workers=lambda _: (0, 1)),
        Pool("beat", "none", "the schedule of benchmarks", celery_pool="", concurrency=lambda _: 0),
        Pool("policy", "of_device", "work for device workers that have a policy server", celery_pool=""),
    )
}

WORKER_POOLS: tuple[WorkerPool, ...] = get_args(WorkerPool)
STAGE_POOLS: tuple[StagePool, ...] = get_args(StagePool)
#: Pools that have queues of their own.
QUEUED_POOLS: tuple[str, ...] = tuple(pool.name for pool in POOLS.values() if pool.queues in ("per_slot", "shared"))
#: Queues that workers of several hosts read; each has the name of its pool.
SHARED_QUEUES: tuple[str, ...] = tuple(pool.name for pool in POOLS.values() if pool.queues == "shared")


def queue_pool(pool: str) -> str:
    """Return the pool whose queues carry the work of this pool."""
    return "device" if POOLS[pool].queues == "of_device" else pool
