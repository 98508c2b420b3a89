"""One command on a system of its own: the ports it takes, and what it waits for. Nothing is started here."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.settings import Settings
from tasks.episodes.servers import PolicyServer
from tasks.errors import Permanent
from tasks.registry import Worker
from workers.embedded_redis import free_port, free_ports, is_free
from workers.one_command import OneCommand, lacking, other_ports

DEVICE = Worker("gpu.a.0", "device", "a", "box", 1, "x", "y", queues=("gpu.a.0",), state="ready")
SERVER = PolicyServer(
    "ws://127.0.0.1:8000", "127.0.0.1", 8000, True, False, False, False, "", "p", "1", "d", 0, 0, 0, None, None
)
SERVED = replace(DEVICE, policies=(SERVER,))
BENCHMARK, INFER = ["assay", "benchmark", "quick"], ["assay", "infer"]


@pytest.fixture
def first() -> Iterator[int]:
    """The first of two ports, of which the second is taken."""
    port = free_ports(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        yield port


def unnamed(**ports: Any) -> Settings:
    """As if these were the usual ports."""
    return Settings.model_construct(_fields_set=set(), **ports)


def test_other_policy_ports_are_taken_when_one_of_the_usual_is(first: int) -> None:
    chosen = int(other_ports(unnamed(policy_port=first), 2)["ASSAY_POLICY_PORT"])
    assert all(is_free(port) for port in (chosen, chosen + 1))
    assert "ASSAY_POLICY_PORT" not in other_ports(unnamed(policy_port=first), 1)


def test_policy_ports_that_are_not_used_may_be_anybodys(first: int) -> None:
    named = Settings(policy_port=first, port=free_port(), development_api_port=free_port())
    assert other_ports(named, 0) == {}
    with pytest.raises(Permanent, match=f"Port {first + 1} on 127.0.0.1 cannot be used .* ASSAY_POLICY_PORT="):
        other_ports(named, 2)


def test_the_development_api_needs_a_port_only_where_it_judges(first: int, tmp_path: Path) -> None:
    taken = {"port": first, "development_api_port": first + 1}
    assert [*other_ports(unnamed(**taken), 0)] == ["ASSAY_DEVELOPMENT_API_PORT"]
    assert other_ports(unnamed(**taken, profiles_file=tmp_path / "profiles.toml"), 0) == {}


@pytest.mark.parametrize(
    ("argv", "settings", "started", "awaited"),
    [
        (BENCHMARK, {}, 3, 3),
        (BENCHMARK, {"policy_command": "serve --port {port}"}, 3, 0),  # it may load for minutes
        (BENCHMARK, {"policy_urls": "ws://gpu1:8000"}, 0, 0),
        (INFER, {}, 0, 0),
    ],
)
def test_policy_servers_are_started_and_awaited_as_far_as_they_are_of_use(
    argv: list[str], settings: dict[str, Any], started: int, awaited: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
    command = OneCommand(Settings(slots="cpu:3", **settings), argv)
    assert (command.policies, command.awaited_policies) == (started, awaited)


def test_what_is_missing_is_counted() -> None:
    assert lacking([SERVED, DEVICE], 2, 2) == ["policy servers: 1 of 2"]
    assert lacking([SERVED, replace(DEVICE, state="starting")], 2, 0) == ["device slots: 1 of 2"]
    assert lacking([SERVED, DEVICE], 2, 1) == []
