"""Scorers against labels: a few answers of our own, and GSM8K's real ones where they are at hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.scorers import labelled
from tasks.scoring.combination import prepare, score_item
from tasks.scoring.isolation import isolation
from tasks.scoring.model import ScoreSpec
from tests.conftest import ROOT

OWN = ROOT / "tests/labelled/arithmetic"
GSM8K = ROOT.parent / "shared/data/gsm8k"


def agreement(folder: Path, scorer: str) -> tuple[int, int]:
    spec = ScoreSpec.model_validate({"scorers": [{"name": scorer}]})
    prepared, samples = prepare(spec), list(labelled(folder))
    agreed = [score_item(spec, prepared, each.item, isolation()).score == float(each.is_correct) for each in samples]
    return sum(agreed), len(agreed)


def test_the_last_number_agrees_with_every_label_of_ours() -> None:
    agreed, of = agreement(OWN, "numeric_match")
    assert agreed == of == 24


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K's model solutions are not beside this checkout")
def test_the_last_number_agrees_with_the_labels_of_real_answers() -> None:
    agreed, of = agreement(GSM8K, "numeric_match")
    assert agreed == of == 5276


def test_the_measurement_prints_agreement_and_disagreements() -> None:
    command = [sys.executable, "-m", "bench.scorers", str(OWN), "--only", "contains", "--show", "1"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "24 labelled responses" in printed
    assert "contains: agrees " in printed
    assert "labelled right, scored wrong: wanted " in printed
