"""What all tests share: an environment without the developer's settings, and a Redis of their own."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from config.settings import Settings
from tests.programs import Program, Programs
from tests.redis_server import RedisServer

ROOT = Path(__file__).parent.parent
NOWHERE = "redis://127.0.0.1:1/0"
#: Variables without our prefix that are read too.
OF_THE_DEVELOPER = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "GPU_HOST", "GPU_PORTS")


@contextmanager
def without_settings() -> Iterator[None]:
    """An environment without the developer's settings; for what is shared by several tests, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("ASSAY_") or name in OF_THE_DEVELOPER:
                patch.delenv(name)
        # A test that forgets to name its Redis must fail, not find the developer's own.
        patch.setenv("ASSAY_REDIS_URL", NOWHERE)
        yield


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer() -> Iterator[None]:
    with without_settings():
        yield


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """A Redis with nothing in it."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def state(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    return Settings(redis_url=redis_url, node="node1", data_dir=tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start programs of the checkout; whatever they left behind is ended, and counts as a failure."""
    with Programs(ROOT, tmp_path) as programs:
        yield programs.start
