"""The Procfile under honcho, and the commands of docker-compose outside Docker."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis

from tests.conftest import ROOT
from tests.support.ports import free_port, free_ports
from tests.support.programs import Program, wait_until
from tests.support.redis_server import RedisServer
from workers.processes.embedded_redis import find_redis_server

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_the_procfile_runs_under_plain_honcho(run: Callable[..., Program], redis_url: str) -> None:
    port = free_port()
    honcho = run(
        "honcho", "start",
        ASSAY_REDIS_URL=redis_url, ASSAY_PORT=str(port), ASSAY_FLOWER_PORT=str(free_port()), ASSAY_NODE="node1",
        ASSAY_DEVELOPMENT_API_PORT=str(free_port()), ASSAY_POLICY_PORT=str(free_ports(2)[0]),
    )  # fmt: skip
    wait_until(lambda: _answers(f"http://127.0.0.1:{port}/ready"), "the whole Procfile is ready")
    honcho.stop(signal.SIGINT)
    assert honcho.survivors() == []


def test_compose_and_procfile_run_the_same_commands() -> None:
    procfile = dict(re.findall(r"(?m)^(\w+): (.+)$", (ROOT / "Procfile").read_text()))
    assert {name: " ".join(SERVICES[name]["command"]) for name in procfile} == procfile


def test_every_service_restarts_and_has_a_health_check() -> None:
    for name, service in SERVICES.items():
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"][0] == "CMD", name


def test_only_pages_for_people_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    ports = {"web": 6006, "flower": 5555, "prometheus": 9090, "grafana": 3000, "jaeger": 16686}
    assert published == {name: [f"127.0.0.1:{port}:{port}"] for name, port in ports.items()}
    assert all(SERVICES[name]["profiles"] == ["monitoring"] for name in ("prometheus", "grafana"))
    assert SERVICES["jaeger"]["profiles"] == ["tracing"]


def test_the_mounts_of_monitoring_exist_at_the_paths_that_its_files_name() -> None:
    provider = yaml.safe_load((ROOT / "monitoring/grafana/provisioning/dashboards/assay.yml").read_text())
    mounts = [volume.split(":") for volume in SERVICES["grafana"]["volumes"]]
    own = {place: ROOT / source for source, place, *_ in mounts if source.startswith("./")}
    assert list(own[provider["providers"][0]["options"]["path"]].glob("*.json"))
    assert (ROOT / "monitoring/prometheus.yml").exists()
    assert "./monitoring:/etc/prometheus:ro" in SERVICES["prometheus"]["volumes"]
    assert "credentials_file: /run/secrets/metrics_token" in (ROOT / "monitoring/prometheus.yml").read_text()
    assert SERVICES["prometheus"]["secrets"] == ["metrics_token"]


def test_the_gpu_profile_reserves_the_devices() -> None:
    (device,) = SERVICES["device-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert SERVICES["device-gpu"]["profiles"] == ["gpu"]
    assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize(("name", "user"), [("judge", "api"), ("policies", "device")])
def test_development_services_need_a_profile_and_share_the_loopback_of_their_users(name: str, user: str) -> None:
    assert SERVICES[name]["profiles"] == ["development"]
    assert SERVICES[name]["network_mode"] == f"service:{user}"


def test_the_images_contain_the_packages_that_their_commands_need() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    web, worker = dockerfile.partition("AS web")[2].split("AS worker")
    assert "requirements/web.txt" in web
    assert "COPY workers/" not in web
    assert "requirements/workers.txt" in worker
    assert "torch" not in (ROOT / "requirements/web.txt").read_text()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("redis-state", {"appendonly": "yes", "save": "", "maxmemory-policy": "noeviction"}),
        ("redis-cache", {"appendonly": "no", "save": "300 1", "maxmemory-policy": "allkeys-lfu"}),
    ],
)
def test_composes_redis_commands_run(
    run: Callable[..., Program], name: str, wanted: dict[str, str], tmp_path: Path
) -> None:
    port = free_port()
    server, *options = SERVICES[name]["command"]
    assert server == "redis-server"
    run(find_redis_server(), *options, "--port", str(port), "--dir", str(tmp_path))
    check = [str(Path(find_redis_server()).with_name("redis-cli")), "-p", str(port), "ping"]
    wait_until(lambda: subprocess.run(check, capture_output=True, check=False).stdout == b"PONG\n", "PONG")
    with Redis(port=port, decode_responses=True) as client:
        assert {key: client.config_get(key)[key] for key in wanted} == wanted


@pytest.mark.parametrize("name", ["web", "device", "api", "cpu", "benchmark", "beat", "judge", "policies", "flower"])
def test_composes_commands_and_health_checks_run(
    run: Callable[..., Program], name: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    service = SERVICES[name]
    given = {
        key: value for key, value in service["environment"].items() if value is not None
    }  # the rest comes from outside
    environment = {key: _outside_docker(value, redis_server) for key, value in given.items()}
    if "ASSAY_TOKENS_FILE" in environment:
        environment["ASSAY_TOKENS_FILE"] = str(tmp_path / "tokens.jsonl")
        made = run("python", "-m", "web.tokens", "add", "me", ASSAY_TOKENS_FILE=environment["ASSAY_TOKENS_FILE"])
        assert made.wait() == 0
    ports = ("ASSAY_PORT", "ASSAY_FLOWER_PORT", "ASSAY_DEVELOPMENT_API_PORT")
    environment |= {name: str(free_port()) for name in ports} | {"ASSAY_POLICY_PORT": str(free_ports(2)[0])}
    with redis_server.client() as client:
        client.flushall()
    run(*service["command"], **environment)
    check = [sys.executable if part == "python" else part for part in service["healthcheck"]["test"][1:]]

    def is_healthy() -> bool:
        run = subprocess.run(check, cwd=ROOT, env=os.environ | environment, capture_output=True, check=False)
        return run.returncode == 0

    wait_until(is_healthy, f"{name} is healthy")


def _outside_docker(value: str, server: RedisServer) -> str:
    """Substitute variables as Compose does, container names by our Redis, and 0.0.0.0 by loopback."""
    value = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
    value = re.sub(r"\$\{\w+:\?[^}]*\}", "user:password", value)
    value = re.sub(r"redis://redis-\w+:6379/0", server.url, value)
    return value.replace("0.0.0.0", "127.0.0.1")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
