"""Rollouts on real processes: whichever process dies, every sample is used, and acknowledged once."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from assay import Assay
from assay.rollouts import FullyAsyncRollouter

from tests.conftest import ROOT
from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.support.programs import PATIENCE_S, Program, wait_until

GROUPS, N = 400, 2
SPEC = {
    "simulated": {"generate_s": 0.05, "reward_s": 0.02, "tail": 1.0, "at_once": 4},
    "n": N,
    "train_batch_size": 8,
    "max_queue_size": 64,
    "total_rollout_steps": GROUPS,
}


@pytest.fixture
def served(run: Callable[..., Program], system: System) -> Served:
    system.launch("api", ASSAY_API_WORKERS_MAX="1")
    system.wait_for_workers(4)
    return Served(
        run, system.state.url, ASSAY_CACHE_URL=system.cache.url, ASSAY_STORAGE_URL=system.settings.storage_url
    )


def test_every_sample_is_used_and_acknowledged_once_although_processes_die(
    run: Callable[..., Program], system: System, served: Served, tmp_path: Path
) -> None:
    url, chance = f"http://127.0.0.1:{served.port}", random.Random(1)
    environment = {"ASSAY_URL": url, "PYTHONPATH": str(ROOT / "client/src")}

    def trainer(name: str) -> Program:
        argv = ("tests/end_to_end/trainer_program.py", rollouter.rollout, name, str(tmp_path / f"{name}.txt"))
        return run("python", *argv, **environment)

    with Assay(url) as client:
        rollouter = FullyAsyncRollouter(SPEC, [{"prompt": str(n)} for n in range(7)], client=client)
        consumed: Callable[[], int] = lambda: rollouter.get_statistics()["total_consumed"]  # noqa: E731  # asked often
        trainers = {name: trainer(name) for name in ("one", "two")}
        for step in range(1, 4):
            wait_until(lambda step=step: consumed() > step * 80, f"{step * 80} samples are used")  # type: ignore[misc]
            trainers["one"].process.send_signal(signal.SIGKILL)
            trainers["one"].wait()
            trainers["one"] = trainer("one")
            system.kill_a_worker(chance)
        for worker in system.children("api") or system.parents("api"):
            os.kill(worker.pid, signal.SIGKILL)
        system.state.stop(signal.SIGKILL)
        time.sleep(0.3)
        system.state.start()
        for program in trainers.values():
            program.wait_for("over", 2 * PATIENCE_S)
            program.wait()
        told = rollouter.view()
    statistics = told["statistics"]
    assert (told["job"]["ok"], told["job"]["reasons"]) == (GROUPS, {}), system.rows(rollouter.rollout)
    seen = [line.split() for name in trainers for line in (tmp_path / f"{name}.txt").read_text().splitlines()]
    assert {int(index) for index, _ in seen} == set(range(GROUPS)), "every prompt's samples were used"
    assert len({sample for _, sample in seen}) == GROUPS * N
    assert (statistics["total_produced"], statistics["total_consumed"]) == (GROUPS * N, GROUPS * N)
    assert (statistics["queue_size"], statistics["leased_samples"], statistics["dropped_samples"]) == (0, 0, 0)
