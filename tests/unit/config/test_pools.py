"""The table of pools: complete, and the only place that says how a pool's workers run."""

import re
from typing import get_args

import pytest

from config.pools import POOLS, QUEUED_POOLS, SHARED_QUEUES, STAGE_POOLS, WORKER_POOLS, WorkerPool, queue_pool
from config.queues import Slot, queues_of
from config.settings import Settings
from tests.conftest import ROOT


def test_the_table_has_every_pool_of_workers_and_of_stages() -> None:
    assert set(POOLS) == {*WORKER_POOLS, *STAGE_POOLS}
    assert {*QUEUED_POOLS} == {*WORKER_POOLS} & {*STAGE_POOLS}, "a pool of workers that jobs can use has queues"


def test_work_for_policy_servers_goes_to_the_queues_of_devices() -> None:
    assert queue_pool("policy") == "device"
    assert all(queue_pool(pool) == pool for pool in QUEUED_POOLS)


@pytest.mark.parametrize("pool", get_args(WorkerPool))
def test_a_worker_reads_the_queues_of_its_pool(pool: WorkerPool) -> None:
    slot = Slot("node1", 3) if POOLS[pool].queues == "per_slot" else None
    expected = {"per_slot": ("gpu.node1.3",), "shared": (pool,), "none": ()}[POOLS[pool].queues]
    assert queues_of(pool, slot) == expected
    assert (pool in SHARED_QUEUES) == (expected == (pool,))


def test_concurrency_and_bounds_follow_the_settings() -> None:
    settings = Settings(api_threads=7, api_workers_min=0, api_workers_max=4, cpu_workers_min=1, cpu_workers_max=3)
    assert {name: POOLS[name].concurrency(settings) for name in WORKER_POOLS} == {
        "device": 1, "api": 7, "cpu": 1, "benchmark": 1, "beat": 0,
    }  # fmt: skip
    bounds = {name: rule(settings) for name in WORKER_POOLS if (rule := POOLS[name].workers)}
    assert bounds == {"api": (0, 4), "cpu": (1, 3), "benchmark": (0, 1)}
    assert [name for name in POOLS if POOLS[name].starts_on_demand(settings)] == ["api", "benchmark"]


def test_the_procfile_launches_every_pool_of_workers() -> None:
    launched = re.findall(r"^\w+: python -m workers\.launch (\w+)$", (ROOT / "Procfile").read_text(), re.MULTILINE)
    assert set(WORKER_POOLS) <= set(launched)
