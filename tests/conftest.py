"""Fixtures for every test: an environment without the developer's settings, a Redis, programs, the default models."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest
from redis import Redis

from config.settings import Settings
from tests.support.programs import PATIENCE_S, Program, Programs
from tests.support.redis_server import RedisServer
from workers.engines import default_models as models

ROOT = Path(__file__).parent.parent
#: URL of a Redis that does not exist.
NOWHERE = "redis://127.0.0.1:1/0"
#: Variables that the programs read beside those with the prefix `ASSAY_`.
UNPREFIXED_SETTINGS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "GPU_HOST", "GPU_PORTS")
#: Data folder of the tests. The default models are written into it once, and all later runs use them.
TEST_DATA = ROOT / "data" / "test"

# A property must not fail because the machine is slow: examples and their generation have no time limit.
hypothesis.settings.register_profile(
    "any-load", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)  # fmt: skip
hypothesis.settings.load_profile("any-load")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Prepare the default models before the first test, if any collected test uses them.

    It takes half a minute on an idle machine. In a fixture, even one of a module or session, it would count against the
    time limit of the first test: pytest-timeout counts fixtures. Every xdist worker calls this hook; a file lock lets
    the first worker prepare the models while the rest wait.
    """
    if session.config.option.collectonly or all(place.is_dir() for place in models.locate(TEST_DATA).values()):
        return
    if any("default_models" in getattr(item, "fixturenames", ()) for item in session.items):
        environment = os.environ | {"ASSAY_DATA_DIR": str(TEST_DATA)}
        # On failure the fixture tries again, and its test shows the error.
        subprocess.run([sys.executable, "-m", models.__name__], cwd=ROOT, env=environment, check=False)


@pytest.fixture(scope="session")
def default_models() -> dict[str, Path]:
    """Folders of the models that come with Assay, by name."""
    return models.prepare(TEST_DATA)


@contextmanager
def without_settings() -> Iterator[None]:
    """Hide the developer's settings while the block runs. Fixtures that several tests share need it, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("ASSAY_") or name in UNPREFIXED_SETTINGS:
                patch.delenv(name)
        # A test that does not name its Redis must fail, not use the developer's.
        patch.setenv("ASSAY_REDIS_URL", NOWHERE)
        yield


@pytest.fixture(autouse=True)
def _no_developer_settings() -> Iterator[None]:
    with without_settings():
        yield


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of a Redis that holds nothing."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def state(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True, socket_timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    return Settings(redis_url=redis_url, node="node1", data_dir=tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start programs of the checkout, and end them after the test. A process that they leave behind fails the test."""
    with Programs(ROOT, tmp_path) as programs:
        yield programs.start
