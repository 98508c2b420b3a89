"""The soak itself, in short: it runs, its books balance, and it leaves nothing. The ten-minute one is `make soak`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.programs import Program

Run = Callable[..., Program]


def soak(run: Run, tmp_path: Path, minutes: float, seed: int) -> dict[str, object]:
    folder = tmp_path / "soak"
    program = run(
        "python", "-m", "bench.soak", "--minutes", str(minutes), "--seed", str(seed), "--output", str(folder),
        PYTHONPATH=str(ROOT / "client/src"),
    )  # fmt: skip
    code = program.wait(minutes * 60 + 600)
    report: dict[str, object] = json.loads((folder / "report.json").read_text())
    assert code == 0, (folder / "report.md").read_text()[:5000]
    return report


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_books_balance_after_two_minutes_of_faults(run: Run, tmp_path: Path) -> None:
    report = soak(run, tmp_path, 2, seed=1)
    assert report["balances"]
    assert sum(report["faults"].values()) > 10, report["faults"]  # type: ignore[attr-defined]


@pytest.mark.timeout(30)
def test_a_folder_with_something_in_it_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    program = run("python", "-m", "bench.soak", "--output", str(tmp_path), PYTHONPATH=str(ROOT / "client/src"))
    assert program.wait() == 2
    assert "is not empty: name another folder" in program.output
