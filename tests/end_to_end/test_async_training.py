"""`run_e2e_test.sh` and `run_benchmark.sh`: the settings they refuse, and a short run of each on its own system."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, Program

Run = Callable[..., Program]


@pytest.mark.parametrize("script", ["run_e2e_test.sh", "run_benchmark.sh"])
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ACTOR_STRATEGY", "fsdp2", "ACTOR_STRATEGY=fsdp2 is not supported"),
        ("NUM_GPUS", "many", "NUM_GPUS must be a whole number from 1 on (it is 'many')"),
        ("MODEL_ID", "Qwen/Qwen2.5-0.5B-Instruct", "this script downloads no models"),
        ("MODEL_PATH", "/nowhere", "it has no config.json"),
    ],
)
def test_a_setting_without_meaning_is_refused_with_a_reason(script: str, variable: str, value: str, said: str) -> None:
    told = subprocess.run(
        [f"./{script}"], cwd=ROOT, env={"PATH": "/usr/bin:/bin", variable: value}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert told.returncode == 2
    assert said in told.stderr


@pytest.mark.parametrize("variable", ["STEPS", "TRAIN_S"])
def test_a_benchmark_has_its_own_steps(variable: str) -> None:
    environment = {"PATH": "/usr/bin:/bin", variable: "3"}
    told = subprocess.run(
        ["./run_benchmark.sh"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (told.returncode, f"{variable}=3 is not supported" in told.stderr) == (2, True)


@pytest.fixture
def start(run: Run, tmp_path: Path) -> Callable[..., Program]:
    """Start a script with an untrained model, in a folder of its own."""
    program = (
        "import sys; sys.path.insert(0, 'examples'); import addition, pathlib; addition.write(addition.network(), "
    )
    model = tmp_path / "model"
    subprocess.run([sys.executable, "-c", f"{program} pathlib.Path({str(model)!r}))"], cwd=ROOT, check=True)
    ports = {name: str(free_port()) for name in ("ASSAY_PORT", "ASSAY_DEVELOPMENT_API_PORT")}

    def start(script: str, **variables: str) -> Program:
        return run(
            f"./{script}", ASSAY_NODE="node1", ASSAY_REDIS_URL="", OUTPUT=str(tmp_path / "results"),
            **{"MODEL_PATH": str(model)} | ports | variables,
        )  # fmt: skip

    return start


def test_a_training_run_takes_fresh_samples_and_brings_its_weights_back(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    running = start("run_e2e_test.sh", SEEDS="1", STALENESS="1 0", STEPS="20")
    assert running.wait(3 * PATIENCE_S) == 0, running.output[-3000:]
    for staleness in (1, 0):
        found = json.loads((tmp_path / f"results/seed1-staleness{staleness}.json").read_text())
        assert found["oldest"] <= staleness
        assert found["statistics"]["current_param_version"] == 20
        assert found["statistics"]["total_consumed"] >= 20 * 128
        rows = (tmp_path / f"results/seed1-staleness{staleness}.jsonl").read_text().splitlines()
        assert [json.loads(row)["step"] for row in rows] == list(range(20))
    assert (tmp_path / "results/rewards.svg").read_text().count("<polyline") == 4


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_reward_rises_when_the_model_learns_from_stale_samples(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    running = start("run_e2e_test.sh", MODEL_PATH="", SEEDS="1", STALENESS="2")
    assert running.wait(2700) == 0, running.output[-3000:]
    found = json.loads((tmp_path / "results/seed1-staleness2.json").read_text())
    assert found["rise"] >= max(0.2, 3 * found["standard_error"])
    assert 0 < found["oldest"] <= 2


def test_the_benchmark_measures_real_generation_and_writes_its_report(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    running = start("run_benchmark.sh", BENCHMARK="async_configurations", REPETITIONS="1", NUM_GPUS="1")
    assert running.wait(3 * PATIENCE_S) == 0, running.output[-3000:]
    report = (tmp_path / "results/performance_report.md").read_text()
    assert "(real), training is a wait" in report
    assert {line.split("|")[1].strip() for line in report.splitlines() if line.startswith("| ")} >= {
        "minimal", "performance",
    }  # fmt: skip
    found = json.loads((tmp_path / "results/results.json").read_text())
    for measurement in found["measurements"]:
        figures = measurement["measured"]["figures"]
        assert figures["samples_s"] > 0
        assert figures["oldest_sample"] <= 3
        assert figures["sync_s"] > 0
    assert "steps/s" in (tmp_path / "results/summary.txt").read_text()
