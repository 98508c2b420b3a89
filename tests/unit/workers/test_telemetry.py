"""Telemetry of a worker: memory and CPU of its processes, its busy time, and its GPUs."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from celery import signals

from tasks.worker_registry import Gpu, Worker
from tests.support import fake_pynvml
from tests.support.programs import PATIENCE_S, wait_until
from workers.devices.nvml import Nvml
from workers.worker import telemetry
from workers.worker.telemetry import LOOK_EVERY, BusyClock, Telemetry, Tree

WORKER = Worker("gpu.a.0", "device", "a", "box", 1, "i", "l", devices=("2", "GPU-0003", "MIG-1"))


def test_each_pinned_gpu_is_reported_with_the_drivers_figures() -> None:
    assert Nvml(WORKER.devices, fake_pynvml).read() == (
        Gpu("2", "GPU-0002-fake", 0.2, 2048, 16384, "Fake 16"),
        Gpu("GPU-0003", "GPU-0003-fake", 0.3, 3072, 16384, "Fake 16"),
        Gpu("MIG-1", "MIG-1", None, 0, 16384, "Fake 16"),
    )


def test_a_gpu_that_does_not_answer_is_left_out_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(("0", "1", "99"), fake_pynvml)
    answered = fake_pynvml.nvmlDeviceGetMemoryInfo

    def lost(handle: int) -> SimpleNamespace:
        if handle == 0:
            raise fake_pynvml.NVMLError("GPU is lost")
        return answered(handle)

    monkeypatch.setattr(fake_pynvml, "nvmlDeviceGetMemoryInfo", lost)
    assert [gpu.device for gpu in nvml.read()] == ["1"]
    monkeypatch.undo()
    assert [gpu.device for gpu in nvml.read()] == ["0", "1"]


def test_without_a_driver_no_gpus_are_reported_and_the_library_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_pynvml, "GPUS", 0)
    nvml = Nvml(("0",), fake_pynvml)
    assert nvml.read() == ()
    monkeypatch.undo()
    assert nvml.read() == (), "the driver of a host is not loaded later"


def test_busy_seconds_count_overlapping_tasks_once_and_never_go_back() -> None:
    clock = BusyClock()
    assert clock.read() == 0.0
    clock._begin()
    clock._begin()
    clock._end()
    before = clock.read()
    wait_until(lambda: clock.read() > before + 0.02, "it runs while a task does")
    clock._end()
    at_rest, now = clock.read(), time.monotonic()
    wait_until(lambda: time.monotonic() > now, "time goes on")
    assert clock.read() == at_rest > before


def test_busy_time_of_a_forked_child_is_visible_to_its_parent() -> None:
    clock = BusyClock()
    release, ready = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        clock._begin()
        os.write(ready[1], b"x")
        os.read(release[0], 1)
        clock._end()
        os._exit(0)
    os.read(ready[0], 1)
    wait_until(lambda: clock.read() > 0.02, "the child's time is seen while it works")
    os.write(release[1], b"x")
    os.waitpid(child, 0)
    assert clock.read() == clock.read() > 0.02, "it rests with the child's task"
    for end in (*release, *ready):
        os.close(end)


def test_memory_and_cpu_include_child_processes_and_cpu_time_survives_them() -> None:
    tree = Tree()
    tree.read()
    alone_mb, alone_s = tree.memory_mb, tree.cpu_s
    burn = (
        "import sys; x = bytearray(64 << 20)\nfor _ in range(3_000_000): pass\nprint('.', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        for _ in range(LOOK_EVERY):
            tree.read()
        with_child_s = tree.cpu_s
        assert tree.memory_mb > alone_mb + 50
        assert with_child_s > alone_s
    for _ in range(LOOK_EVERY):
        tree.read()
    assert tree.cpu_s >= with_child_s
    assert tree.memory_mb < alone_mb + 50


def test_gpus_are_no_longer_reported_if_their_driver_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Telemetry(WORKER, 0.01, Nvml(WORKER.devices, fake_pynvml))
    told.measure()
    assert len(told.upon(WORKER).gpus) == 3
    monkeypatch.setattr(telemetry, "STALE_S", 0.0)
    assert told.upon(WORKER).gpus == ()


def test_the_figures_are_added_to_the_workers_record() -> None:
    before = signals.task_prerun.receivers.copy(), signals.task_postrun.receivers.copy()
    told_by = Telemetry(WORKER, 0.01, Nvml(WORKER.devices, fake_pynvml))
    try:
        told_by.busy.connect()
        told_by.start()
        wait_until(lambda: told_by.upon(WORKER).gpus, "the first measurement")
        signals.task_prerun.send(sender=None)
        wait_until(lambda: told_by.upon(WORKER).busy_s > 0, "a task runs")
        signals.task_postrun.send(sender=None)
        told = told_by.upon(WORKER)
        assert (told.memory_mb > 0, told.cpu_s > 0, len(told.gpus), told.name) == (True, True, 3, "gpu.a.0")
    finally:
        told_by.stop()
        told_by._thread.join(PATIENCE_S)
        signals.task_prerun.receivers[:], signals.task_postrun.receivers[:] = before
