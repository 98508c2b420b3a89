"""A short soak: it runs, its accounting is consistent, and it leaves nothing behind. The full soak is `make soak`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.programs import Program

Run = Callable[..., Program]


def soak(run: Run, tmp_path: Path, minutes: float, seed: int) -> dict[str, object]:
    folder = tmp_path / "soak"
    arguments = ("--minutes", str(minutes), "--seed", str(seed), "--output", str(folder))
    program = run("python", "-m", "bench.soak", *arguments, PYTHONPATH=str(ROOT / "client/src"))
    code = program.wait(minutes * 60 + 2400)
    report: dict[str, object] = json.loads((folder / "report.json").read_text())
    assert code == 0, (folder / "report.md").read_text()[:5000]
    return report


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_accounting_is_consistent_after_two_minutes_of_faults(run: Run, tmp_path: Path) -> None:
    report = soak(run, tmp_path, 2, seed=1)
    assert report["balances"]
    assert sum(report["faults"].values()) > 10, report["faults"]  # type: ignore[attr-defined]


def test_a_folder_that_is_not_empty_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    program = run("python", "-m", "bench.soak", "--output", str(tmp_path), PYTHONPATH=str(ROOT / "client/src"))
    assert program.wait() == 2
    assert "is not empty: choose another folder" in program.output
