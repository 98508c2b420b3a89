"""New weights for devices that generate, on the real processes: loaded, refused, and loaded after a crash."""

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tasks.composition import create_core
from tasks.rollouts.model import RolloutSpec
from tasks.rollouts.rollouts import Rollouts
from tasks.rollouts.sample_queue import Batch, Wish
from tests.end_to_end.system import System
from tests.support import tiny_models
from tests.support.programs import Program, wait_until
from tests.support.redis_server import RedisServer

DEVICES = ("gpu.node1.0", "gpu.node1.1")
BATCH = 16


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write the only model of the models folder, and four more versions of its weights."""
    folder = tmp_path_factory.mktemp("models")
    return [tiny_models.write(folder / ("tiny" if seed == 0 else f"v{seed}"), seed=seed) for seed in range(5)]


@pytest.fixture
def system(run: Callable[..., Program], tmp_path: Path, folders: list[Path]) -> Iterator[System]:
    with RedisServer(tmp_path / "state") as state, RedisServer(tmp_path / "cache", "cache") as cache:
        system = System(run, state, cache, tmp_path / "journal")
        models = folders[0].parent
        system.settings = system.settings.model_copy(update={"models_dir": models})
        system.core = create_core(system.settings, system.celery)
        for pool in ("device", "cpu"):
            system.launch(pool, ASSAY_MODELS_DIR=str(models), OMP_NUM_THREADS="1")
        system.wait_for_workers(3)
        yield system
        system.stop()


class Trainer:
    def __init__(self, system: System, folders: list[Path], **spec: Any) -> None:
        self.rollouts = Rollouts(system.core, system.celery)
        self._folders = folders
        asked = {
            "model": "tiny", "sampling": {"n": 2, "temperature": 1.0, "max_new_tokens": 24}, "max_staleness": 1,
            "train_batch_size": BATCH, "max_queue_size": 3 * BATCH,
        } | spec  # fmt: skip
        lines = [json.dumps({"prompt": f"prompt {n}"}).encode() for n in range(50)]
        self.id = self.rollouts.create(RolloutSpec.model_validate(asked), lines, {})
        self._held = ""

    def get(self, version: int) -> list[dict[str, Any]]:
        """Return the groups of the next batch, and acknowledge the previous batch."""
        found: list[Batch] = []

        def look() -> bool:
            wish = Wish(BATCH, version=version, whole=True, consumer="trainer", acknowledge=self._held)
            found.append(self.rollouts.get(self.id, wish))
            return bool(found[-1].id)

        wait_until(look, f"a batch for version {version}")
        self._held = found[-1].id
        return [json.loads(text) for text in self.rollouts.queue.texts(self.id, found[-1])]

    def announce(self, number: int, sha256: str = "") -> None:
        file = self._folders[number] / "model.safetensors"
        checksum = sha256 or hashlib.sha256(file.read_bytes()).hexdigest()
        self.rollouts.announce(self.id, number, file.as_uri(), checksum)

    def follows(self, number: int) -> bool:
        devices = self.rollouts.sync_status(self.id).devices
        return {name for name, each in devices.items() if each.state == "following" and each.number == number} == set(
            DEVICES
        )


def check_tokens(groups: list[dict[str, Any]], folders: list[Path]) -> set[int]:
    """Check that each token has the log-probability of the version that it names. Return the versions found."""
    networks = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in folders]
    seen = set()
    for group in groups:
        for sample in group["samples"]:
            tokens = torch.tensor([[*group["prompt_ids"], *sample["token_ids"]]])
            at = 0
            for number, count in sample["versions"]:
                seen.add(number)
                with torch.no_grad():
                    logprobs = torch.log_softmax(networks[number](tokens).logits[0], -1)
                for place in range(at, at + count):
                    wanted = float(logprobs[len(group["prompt_ids"]) - 1 + place, sample["token_ids"][place]])
                    assert sample["logprobs"][place] == pytest.approx(wanted, abs=5e-4)
                at += count
            assert at == len(sample["token_ids"])
    return seen


def test_tokens_are_of_the_version_they_name_and_killed_devices_restart_at_the_current_version(
    system: System, folders: list[Path]
) -> None:
    trainer = Trainer(system, folders)
    seen = set()
    for version in range(5):
        for _ in range(2 if version == 4 else 1):
            groups = trainer.get(version)
            assert all(version - number <= 1 for group in groups for each in group["samples"]
                       for number, _ in each["versions"])  # fmt: skip
            seen |= check_tokens(groups, folders)
        if version == 2:
            for child in system.children():  # both devices, with the weights in their memory
                os.kill(child.pid, signal.SIGKILL)
        if version < 4:
            trainer.announce(version + 1)
    assert {0, 4} <= seen
    wait_until(lambda: trainer.follows(4) or not trainer.get(4), "both devices are at the last version")


def test_weights_that_no_device_can_load_are_rolled_back_and_generation_goes_on(
    system: System, folders: list[Path]
) -> None:
    trainer = Trainer(system, folders, sync_retry_delay=0.01)
    trainer.get(0)
    trainer.announce(1)
    wait_until(lambda: trainer.rollouts.sync_status(trainer.id).state == "synced", "the first version")
    trainer.announce(2, sha256="0" * 64)
    wait_until(lambda: trainer.rollouts.sync_status(trainer.id).state == "rolled_back", "the version is rolled back")
    status = trainer.rollouts.sync_status(trainer.id)
    assert (status.version.number, status.failed_number) == (1, 2)
    assert "the checksum" in status.reason
    assert trainer.rollouts.statistics(trainer.id)["current_param_version"] == 1
    groups = [group for _ in range(2) for group in trainer.get(1)]  # the second is made ahead
    assert check_tokens(groups, folders) <= {0, 1}
    assert trainer.rollouts.versions.left(trainer.id) == set()
    trainer.announce(2)
    wait_until(
        lambda: trainer.rollouts.sync_status(trainer.id).state == "synced", "announced again, the version is loaded"
    )
    assert check_tokens(trainer.get(2), folders) <= {1, 2}


def test_idle_devices_load_new_weights_and_a_pause_holds_meanwhile(system: System, folders: list[Path]) -> None:
    trainer = Trainer(system, folders)
    trainer.get(0)
    trainer.rollouts.hold(trainer.id, True)
    wait_until(lambda: trainer.rollouts.hold(trainer.id).holds, "the pause holds")
    before = trainer.rollouts.statistics(trainer.id)["total_generated_samples"]
    trainer.announce(1)
    wait_until(lambda: trainer.follows(1), "both devices have it")
    assert trainer.rollouts.hold(trainer.id).holds
    assert trainer.rollouts.statistics(trainer.id)["total_generated_samples"] == before
