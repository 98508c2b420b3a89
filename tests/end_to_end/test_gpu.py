"""On a host with GPUs: one worker per real GPU, each seeing only its own. Skipped, saying so, elsewhere."""

import os
from collections.abc import Callable

import pytest
from redis import Redis

from config.settings import Settings
from tasks.app import create_celery
from tasks.probe import ask
from tasks.registry import Registry
from tests.programs import Program, wait_until
from workers.devices import discover_gpus

GPUS, _ = discover_gpus(os.environ)


@pytest.mark.skipif(not GPUS, reason="nvidia-smi lists no GPU here")
def test_one_worker_per_gpu(run: Callable[..., Program], settings: Settings, state: Redis) -> None:
    run("python", "-m", "workers.launch", "device", ASSAY_REDIS_URL=settings.redis_url, ASSAY_NODE="node1")
    registry = Registry(state, settings.heartbeat_ttl_s)
    wait_until(lambda: sum(worker.state == "ready" for worker in registry.workers()) == len(GPUS), "all slots ready")
    with create_celery(settings) as app:
        for slot, gpu in enumerate(GPUS):
            answer = ask(app, state, f"gpu.node1.{slot}", timeout_s=30)
            assert answer is not None
            assert answer["environment"]["CUDA_VISIBLE_DEVICES"] == gpu
