from collections.abc import Iterator
from pathlib import Path

import pytest

from config.settings import Settings
from tests.fleet import Fleet


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(settings, tmp_path / "journal")
    yield fleet
    fleet.close()
