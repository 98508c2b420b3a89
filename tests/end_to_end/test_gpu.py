"""On a host with GPUs, each GPU has a worker that sees only this GPU. Elsewhere the test is skipped with a reason."""

import os
from collections.abc import Callable

import pytest
from redis import Redis

from config.settings import Settings
from tasks.app import create_celery
from tasks.probe import ask
from tasks.worker_registry import Registry
from tests.support.programs import PATIENCE_S, Program, wait_until
from workers.devices.discovery import discover_gpus

GPUS, _ = discover_gpus(os.environ)


@pytest.mark.skipif(not GPUS, reason="nvidia-smi lists no GPU here")
def test_one_worker_per_gpu(run: Callable[..., Program], settings: Settings, state: Redis) -> None:
    run("python", "-m", "workers.launch", "device", ASSAY_REDIS_URL=settings.redis_url, ASSAY_NODE="node1")
    registry = Registry(state, settings.heartbeat_ttl_s)
    wait_until(lambda: sum(worker.state == "ready" for worker in registry.workers()) == len(GPUS), "all slots ready")
    with create_celery(settings) as app:
        for slot, gpu in enumerate(GPUS):
            answer = ask(app, state, f"gpu.node1.{slot}", timeout_s=PATIENCE_S)
            assert answer is not None
            assert answer["environment"]["CUDA_VISIBLE_DEVICES"] == gpu
