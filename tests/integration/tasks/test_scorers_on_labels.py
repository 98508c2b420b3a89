"""Scorers against labelled answers in this repository. `python -m bench.accuracy.scorers FOLDER` measures others."""

import subprocess
import sys
from pathlib import Path

from bench.accuracy.scorers import labelled
from tasks.scoring.combination import prepare_scorers, score_item
from tasks.scoring.isolation import isolation
from tasks.scoring.model import ScoreSpec
from tests.conftest import ROOT

OWN = ROOT / "tests/labelled/arithmetic"


def agreement(folder: Path, scorer: str) -> tuple[int, int]:
    spec = ScoreSpec.model_validate({"scorers": [{"name": scorer}]})
    prepared, samples = prepare_scorers(spec), list(labelled(folder))
    agreed = [score_item(spec, prepared, each.item, isolation()).score == float(each.is_correct) for each in samples]
    return sum(agreed), len(agreed)


def test_numeric_match_agrees_with_every_label() -> None:
    agreed, of = agreement(OWN, "numeric_match")
    assert agreed == of == 24


def test_the_measurement_prints_agreement_and_disagreements() -> None:
    command = [sys.executable, "-m", "bench.accuracy.scorers", str(OWN), "--only", "contains", "--show", "1"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "24 labelled responses" in printed
    assert "contains: agrees " in printed
    assert "labelled right, scored wrong: reference " in printed
