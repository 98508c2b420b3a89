from collections.abc import Iterator
from pathlib import Path

import pytest

from config.settings import Settings
from tests.fleet import Fleet
from tests.integration.api import Api


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
    """For tests that compute: others run beside them."""
    import torch  # most tests of this folder do without

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
