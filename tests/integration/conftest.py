from collections.abc import Iterator
from pathlib import Path

import pytest

from config.settings import Settings
from tests.integration.api import Api
from tests.support.fleet import Fleet


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(settings, tmp_path / "journal")
    yield fleet
    fleet.close()


@pytest.fixture
def api(fleet: Fleet) -> Api:
    return Api(fleet)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute with a single thread, because other tests run at the same time."""
    import torch  # imported here, because most tests of this folder need no torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
