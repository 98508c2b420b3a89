"""Policy servers that this host starts: pinned to a device, logged, restarted when dead or hung, stopped in order."""

import os
import signal
import threading
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from tasks.errors import PolicyTimeout
from tests.support import fake_nvidia_smi
from tests.support.ports import free_ports
from tests.support.programs import PATIENCE_S, Program, wait_until
from workers.development_policy.control import Handle, running
from workers.policies.address import Address
from workers.policies.connection import Connection, Limits
from workers.policies.pool import Pool

Run = Callable[..., Program]
OBSERVATION = {"observation/state": np.zeros(2), "observation/targets": np.eye(4, 2), "prompt": "the red target"}


def launch(run: Run, port: int, **environment: str) -> Program:
    return run(
        "python", "-m", "workers.launch", "policies",
        ASSAY_NODE="node1", ASSAY_POLICY_PORT=str(port), **{"ASSAY_SLOTS": "cpu:2"} | environment,
    )  # fmt: skip


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as reply:
            return bool(reply.read() == b"OK\n")
    except OSError:
        return False


def pid_of(launcher: Program, port: int) -> int:
    """Return the process id of the server, or 0 while it does not run."""
    for process in launcher.descendants():
        with suppress(psutil.NoSuchProcess):
            if str(port) in process.cmdline():
                return process.pid
    return 0


def test_one_server_per_slot_is_started_logged_and_stopped(run: Run, tmp_path: Path) -> None:
    first, second = free_ports(2)
    launcher = launch(run, first)  # without any Redis
    for port in (first, second):
        wait_until(lambda port=port: answers(port), f"port {port} answers")
    logs = tmp_path / "data/logs"
    assert sorted(log.name for log in logs.iterdir()) == ["pi0_gpu0.log", "pi0_gpu1.log"]
    assert f":{first};" in (logs / "pi0_gpu0.log").read_text()
    assert f":{second};" in (logs / "pi0_gpu1.log").read_text()
    check = run("python", "-m", "workers.healthcheck", "policies", ASSAY_POLICY_PORT=str(first), ASSAY_SLOTS="cpu:2")
    assert check.wait() == 0
    assert launcher.stop(signal.SIGTERM) == 0
    assert launcher.survivors() == []
    assert (logs / "pi0_gpu0.log").read_text().rstrip().endswith("stopped"), "the server was stopped, not killed"
    check = run("python", "-m", "workers.healthcheck", "policies", ASSAY_POLICY_PORT=str(first), ASSAY_SLOTS="cpu:2")
    assert check.wait() == 1


def test_each_server_sees_its_own_device_only(run: Run, tmp_path: Path) -> None:
    first, second = free_ports(2)
    path = f"{fake_nvidia_smi.install(tmp_path / 'bin', 2)}:{os.environ['PATH']}"
    command = "{python} -m workers.development_policy --port {port} --version gpu{device}"
    launch(run, first, ASSAY_SLOTS="", PATH=path, ASSAY_POLICY_COMMAND=command)
    for slot, port in enumerate((first, second)):
        wait_until(lambda port=port: answers(port), f"port {port} answers")
        assert f"CUDA_VISIBLE_DEVICES {slot};" in (tmp_path / f"data/logs/pi0_gpu{slot}.log").read_text()
        with closing(Connection(Address(f"ws://127.0.0.1:{port}"))) as connection:
            connection.connect()
            assert connection.metadata["version"] == f"gpu{slot}"


def test_a_dead_server_is_started_again_and_the_other_is_left_alone(run: Run) -> None:
    first, second = free_ports(2)
    launcher = launch(run, first)
    for port in (first, second):
        wait_until(lambda port=port: answers(port), f"port {port} answers")
    dead, other = pid_of(launcher, first), pid_of(launcher, second)
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: answers(first) and pid_of(launcher, first) not in (0, dead), "the server has restarted")
    assert pid_of(launcher, second) == other


def test_a_wedged_server_is_killed_and_started_again_and_the_pool_uses_it(run: Run) -> None:
    first, second = free_ports(2)
    launcher = launch(run, first, ASSAY_POLICY_SILENT_S="10")
    for slot in range(2):
        launcher.wait_for(rf"policy\.node1\.{slot} answers")
    wedged, other = pid_of(launcher, first), pid_of(launcher, second)
    Handle(f"ws://127.0.0.1:{first}").set(share_wedge=1)
    with closing(Pool([Address(f"ws://127.0.0.1:{first}")], Limits(reply_s=1.0))) as pool:
        with pytest.raises(PolicyTimeout):
            pool.infer(OBSERVATION, wait_s=PATIENCE_S)
        launcher.wait_for("policy.node1.0 has not answered for too long: it is killed and started again")
        assert pool.infer(OBSERVATION, wait_s=PATIENCE_S, reply_s=PATIENCE_S).values["actions"].shape == (10, 2)
    assert pid_of(launcher, first) not in (0, wedged)
    assert pid_of(launcher, second) == other, "the healthy server is not restarted"


def test_a_server_that_infers_for_long_is_not_taken_for_wedged(run: Run) -> None:
    (first,) = free_ports(1)
    launcher = launch(run, first, ASSAY_SLOTS="cpu:1", ASSAY_POLICY_SILENT_S="8")
    wait_until(lambda: answers(first), "it answers")
    server, pid = Handle(f"ws://127.0.0.1:{first}"), pid_of(launcher, first)
    server.set(latency_ms=1000)
    ended = threading.Event()
    with closing(Pool([Address(server.url)])) as pool:

        def keep_busy() -> None:
            while not ended.is_set():
                pool.infer(OBSERVATION, wait_s=PATIENCE_S)

        busy = threading.Thread(target=keep_busy)
        busy.start()
        wait_until(lambda: pool.status()[0].calls >= 12, "it has been busy for longer than the silence limit")
        ended.set()
        busy.join()
    assert pid_of(launcher, first) == pid


def test_servers_that_are_given_are_watched_and_none_is_started(run: Run) -> None:
    (absent,) = free_ports(1)
    with running() as server:
        launcher = run(
            "python", "-m", "workers.launch", "policies",
            GPU_HOST="127.0.0.1", GPU_PORTS=f"{server.port},{absent}", ASSAY_POLICY_SILENT_S="3",
        )  # fmt: skip
        launcher.wait_for(rf"policy server {server.url} answers")
        launcher.wait_for(rf"policy server ws://127.0.0.1:{absent} does not answer")
        assert "no server is started here" in launcher.output
        assert launcher.descendants() == []
        server.kill()
        launcher.wait_for(rf"policy server {server.url} does not answer")
    assert launcher.stop() == 0
