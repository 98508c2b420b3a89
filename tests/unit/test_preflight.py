"""What a machine is told before anything is installed."""

import ast
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from config import preflight
from tests.conftest import ROOT


def test_this_machine_is_fine() -> None:
    assert preflight.problem() is None


def test_it_runs_as_a_file_before_anything_is_installed() -> None:
    subprocess.run([sys.executable, "config/preflight.py"], cwd=ROOT, check=True)


def test_an_old_python_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert "needs Python 3.11 or newer; this is 3.9" in preflight.problem()
    assert "PYTHON=" in preflight.problem()


def test_too_little_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 10, 1e8))
    assert "only 0.1 GB free" in preflight.problem()


def test_an_old_python_can_parse_it() -> None:
    ast.parse((ROOT / "config/preflight.py").read_text(), feature_version=(3, 4))


def test_make_without_a_python_says_so_in_one_line(tmp_path: Path) -> None:
    for folder in ("config", "requirements"):
        (tmp_path / folder).mkdir()
    for name in ("Makefile", "config/preflight.py", "requirements/local.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    run = subprocess.run(
        ["make", "up", "PYTHON=python-that-is-not-there"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert run.stderr.splitlines()[0].startswith(
        "Assay needs Python 3.11 or newer, and there is no python-that-is-not-there"
    )
