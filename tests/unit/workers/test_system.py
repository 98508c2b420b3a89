"""The system on one machine: the ports it takes and the parts it waits for. No test here starts a process."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.settings import Settings
from tasks.episodes.policy_servers import PolicyServer
from tasks.errors import Permanent
from tasks.worker_registry import Worker
from tests.conftest import ROOT
from workers.processes.ports import free_port, free_ports, is_free
from workers.system.one_command import system_for
from workers.system.ports import replace_taken_ports, required_ports
from workers.system.readiness import missing_slots

DEVICE = Worker("gpu.a.0", "device", "a", "box", 1, "x", "y", queues=("gpu.a.0",), state="ready")
SERVER = PolicyServer(
    "ws://127.0.0.1:8000", "127.0.0.1", 8000, True, False, False, False, "", "p", "1", "d", 0, 0, 0, None, None
)
CONNECTED = replace(DEVICE, policies=(SERVER,))
BENCHMARK, INFER = ["assay", "benchmark", "quick"], ["assay", "infer"]


@pytest.fixture
def first() -> Iterator[int]:
    """Yield the first of two ports; a server listens on the second."""
    port = free_ports(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        yield port


def with_default_ports(**ports: Any) -> Settings:
    """Return settings with these ports as their defaults: no port was set explicitly."""
    return Settings.model_construct(_fields_set=set(), **ports)


def replaced(settings: Settings, policy_servers: int) -> dict[str, str]:
    return replace_taken_ports(settings, required_ports(settings, policy_servers, with_flower=False))


def test_policy_servers_move_to_other_ports_when_a_default_port_is_taken(first: int) -> None:
    chosen = int(replaced(with_default_ports(policy_port=first), 2)["ASSAY_POLICY_PORT"])
    assert all(is_free(port) for port in (chosen, chosen + 1))
    assert "ASSAY_POLICY_PORT" not in replaced(with_default_ports(policy_port=first), 1)


def test_policy_ports_matter_only_if_policy_servers_are_started(first: int) -> None:
    explicit = Settings(policy_port=first, port=free_port(), development_api_port=free_port())
    assert replaced(explicit, 0) == {}
    with pytest.raises(Permanent, match=f"Port {first + 1} on 127.0.0.1 cannot be used .* ASSAY_POLICY_PORT="):
        replaced(explicit, 2)


def test_the_development_api_needs_a_port_only_where_it_judges(first: int, tmp_path: Path) -> None:
    ports = {"port": first, "development_api_port": first + 1}
    assert [*replaced(with_default_ports(**ports), 0)] == ["ASSAY_DEVELOPMENT_API_PORT"]
    assert replaced(with_default_ports(**ports, profiles_file=tmp_path / "profiles.toml"), 0) == {}


@pytest.mark.parametrize(
    ("command", "settings", "started", "awaited"),
    [
        (BENCHMARK, {}, 3, 3),
        (BENCHMARK, {"policy_command": "serve --port {port}"}, 3, 0),  # it may load for minutes
        (BENCHMARK, {"policy_urls": "ws://gpu1:8000"}, 0, 0),
        (INFER, {}, 0, 0),
    ],
)
def test_a_command_gets_the_policy_servers_that_it_uses(
    command: list[str], settings: dict[str, Any], started: int, awaited: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
    system = system_for(command, Settings(slots="cpu:3", **settings), ROOT / "Procfile")
    assert (system.policy_servers, system.awaited_policy_servers) == (started, awaited)


def test_missing_device_slots_and_policy_servers_are_counted() -> None:
    assert missing_slots([CONNECTED, DEVICE], 2, 2) == ["policy servers: 1 of 2"]
    assert missing_slots([CONNECTED, replace(DEVICE, state="starting")], 2, 0) == ["device slots: 1 of 2"]
    assert missing_slots([CONNECTED, DEVICE], 2, 1) == []
