"""Start of Flower: it always has a password if tokens are set."""

from pathlib import Path

import pytest

from config.settings import Settings, SettingsError
from workers.processes.flower import AUTH_FILE, flower_environment


def settings(folder: Path) -> Settings:
    return Settings(tokens_file=folder / "tokens.jsonl", data_dir=folder / "data")


def test_with_tokens_flower_has_a_password_that_persists(tmp_path: Path) -> None:
    first = flower_environment(settings(tmp_path))["FLOWER_BASIC_AUTH"]
    assert first.startswith("assay:")
    assert flower_environment(settings(tmp_path))["FLOWER_BASIC_AUTH"] == first
    kept = tmp_path / "data" / AUTH_FILE
    assert kept.stat().st_mode & 0o777 == 0o600
    assert list(kept.parent.iterdir()) == [kept]


def test_an_empty_password_file_does_not_disable_the_password(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / AUTH_FILE).touch()
    with pytest.raises(SettingsError, match="user:password"):
        flower_environment(settings(tmp_path))


def test_without_tokens_flower_has_no_password(tmp_path: Path) -> None:
    assert "FLOWER_BASIC_AUTH" not in flower_environment(Settings(data_dir=tmp_path))
