"""Preflight check: messages about an unsuitable machine before packages are installed."""

import ast
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from config import preflight
from tests.conftest import ROOT


def test_this_machine_passes_the_preflight_check() -> None:
    assert preflight.find_problem() is None


def test_the_check_runs_as_a_file_without_installed_packages() -> None:
    subprocess.run([sys.executable, "config/preflight.py"], cwd=ROOT, check=True)


def test_an_old_python_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert "needs Python 3.11 or newer; this is 3.9" in preflight.find_problem()
    assert "PYTHON=" in preflight.find_problem()


def test_too_little_disk_space_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 10, 1e8))
    assert "Only 0.1 GB of disk space are free" in preflight.find_problem()


def test_an_old_python_can_parse_the_check() -> None:
    ast.parse((ROOT / "config/preflight.py").read_text(), feature_version=(3, 4))


def test_make_without_python_fails_with_one_line(tmp_path: Path) -> None:
    for folder in ("config", "requirements"):
        (tmp_path / folder).mkdir()
    for name in ("Makefile", "config/preflight.py", "requirements/local.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    run = subprocess.run(
        ["make", "up", "PYTHON=python-that-is-not-there"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert run.stderr.splitlines()[0].startswith(
        "Assay needs Python 3.11 or newer, and python-that-is-not-there was not found."
    )
