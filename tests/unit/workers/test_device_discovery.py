"""Discovery of a host's devices, and its division into slots."""

import os
from pathlib import Path

import pytest

from config.settings import Settings
from tests.support import fake_nvidia_smi
from workers.devices.discovery import KEPT_SHAPES, discover_gpus, take_inventory


@pytest.fixture
def eight(tmp_path: Path) -> dict[str, str]:
    """An environment in which nvidia-smi lists eight GPUs."""
    return {"PATH": f"{fake_nvidia_smi.install(tmp_path / 'bin', 8)}:{os.environ['PATH']}"}


@pytest.fixture
def none(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{fake_nvidia_smi.install(tmp_path / 'bin', 0, exit_code=9)}:{os.environ['PATH']}"}


def test_nvidia_smi_is_asked(eight: dict[str, str]) -> None:
    assert discover_gpus(eight)[0] == tuple("01234567")


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("2,5", ("2", "5")),
        (" 1 , 0 ", ("1", "0")),
        ("", ()),
        ("-1", ()),
        ("0,-1,3", ("0",)),  # CUDA ends the list at the first invalid entry
        ("1,9", ("1",)),  # GPU 9 does not exist
        ("GPU-8e0f,1", ("GPU-8e0f", "1")),
        ("2,2,3", ("2", "3")),  # a slot per GPU, even if the GPU is listed twice
        ("none", ()),
        ("NoDevFiles", ()),
    ],
)
def test_cuda_visible_devices_restricts_the_list(eight: dict[str, str], visible: str, found: tuple[str, ...]) -> None:
    assert discover_gpus(eight | {"CUDA_VISIBLE_DEVICES": visible})[0] == found


def test_cuda_visible_devices_is_used_if_nvidia_smi_fails(none: dict[str, str]) -> None:
    assert discover_gpus(none | {"CUDA_VISIBLE_DEVICES": "0,1"})[0] == ("0", "1")


def test_a_host_without_gpus_gets_two_cpu_slots_that_divide_its_threads(
    none: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    slots = take_inventory(Settings(node="n"), none).slots
    pinned = {
        "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "6", "MKL_NUM_THREADS": "6",
        "LRU_CACHE_CAPACITY": str(KEPT_SHAPES), "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(KEPT_SHAPES),
    }  # fmt: skip
    assert [each.environment() for each in slots] == [pinned] * 2


def test_a_failure_of_nvidia_smi_is_reported(none: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    assert discover_gpus(none)[0] == ()
    assert "nvidia-smi fails (exit code 9)" in caplog.text


def test_a_given_number_of_threads_is_kept(none: dict[str, str]) -> None:
    slots = take_inventory(Settings(node="n", slots="4"), none | {"OMP_NUM_THREADS": "3"}).slots
    assert [each.threads for each in slots] == [3] * 4


def test_slots_override_the_number_of_workers(eight: dict[str, str]) -> None:
    slots = take_inventory(Settings(node="n", slots="4"), eight).slots
    assert [each.environment() for each in slots] == [
        {"CUDA_VISIBLE_DEVICES": pair, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} for pair in ("0,1", "2,3", "4,5", "6,7")
    ]


def test_cpu_slots_may_be_forced_on_a_gpu_host(eight: dict[str, str]) -> None:
    slots = take_inventory(Settings(node="n", slots="cpu:3"), eight).slots
    assert [each.devices for each in slots] == [(), (), ()]
