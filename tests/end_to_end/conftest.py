from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.system import System
from tests.support.programs import Program
from tests.support.redis_server import RedisServer


@pytest.fixture
def system(run: Callable[..., Program], tmp_path: Path) -> Iterator[System]:
    """A system with two device slots and a CPU worker, on its own Redis servers."""
    with RedisServer(tmp_path / "state") as state, RedisServer(tmp_path / "cache", "cache") as cache:
        system = System(run, state, cache, tmp_path / "journal")
        system.launch("device")
        system.launch("cpu")
        system.wait_for_workers(3)
        yield system
        system.stop()
