"""`make up` as a newcomer runs it: every part answers, Ctrl-C leaves no process behind, and the data is kept."""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from assay import Assay, AsyncAssay
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from redis import Redis

from tests.conftest import ROOT
from tests.support.ports import free_port, free_ports
from tests.support.programs import PATIENCE_S, Program, wait_until
from workers.engines.default_models import SMOLLM2
from workers.processes.supervisor import EXIT_MISCONFIGURED

Run = Callable[..., Program]


@pytest.fixture
def ports() -> dict[str, str]:
    """The environment of `make up` on reserved ports, without the tests' guard against a foreign Redis."""
    return {
        "ASSAY_PORT": str(free_port()),
        "ASSAY_FLOWER_PORT": str(free_port()),
        "ASSAY_DEVELOPMENT_API_PORT": str(free_port()),
        "ASSAY_POLICY_PORT": str(free_ports(2)[0]),
        "ASSAY_NODE": "node1",
        "ASSAY_REDIS_URL": "",
    }


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
        return json.loads(reply.read())


@pytest.mark.filterwarnings("ignore:connect\\(\\) must be used as a context manager:DeprecationWarning")
def test_up_answers_everywhere_then_stops_without_orphans_and_keeps_its_data(
    run: Run, ports: dict[str, str], default_models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "default_models").symlink_to(default_models[SMOLLM2].parent)
    assert run("python", "-m", "workers.engines.default_models").wait() == 0
    first = run("python", "-m", "workers.up", **ports)
    welcome = first.wait_for(r"(?s)Assay is up.*Ctrl-C stops everything")[0]
    api = f"http://127.0.0.1:{ports['ASSAY_PORT']}"
    assert f"API        {api}\n" in welcome
    assert f"Dashboard  {api}/\n" in welcome
    assert f"Flower     http://127.0.0.1:{ports['ASSAY_FLOWER_PORT']}/\n" in welcome
    assert "api, cpu, gpu.node1.0, gpu.node1.1" in welcome
    (command,) = re.findall(r"Try:  (curl .*)", welcome)
    if shutil.which("curl"):
        told = json.loads(subprocess.run(command, shell=True, check=True, capture_output=True).stdout)
        assert [row["score"] for row in told["results"]] == [1.0, 0.0], "the command of the welcome works"
    pools = [worker["pool"] for worker in get(f"{api}/v1/workers")["workers"]]
    assert sorted(pools) == ["api", "beat", "cpu", "device", "device"]
    note = "judging uses the development API: scores mean nothing"
    assert get(f"{api}/ready") == {"ready": True, "missing": [], "notes": [note]}
    judge = f"http://127.0.0.1:{ports['ASSAY_DEVELOPMENT_API_PORT']}/v1"
    assert f"Judge      {judge} ({note}" in welcome
    assert get(f"{judge}/models")["data"][0]["id"] == "development"
    port = int(ports["ASSAY_POLICY_PORT"])
    policies = [f"ws://127.0.0.1:{port}", f"ws://127.0.0.1:{port + 1}"]
    assert f"Policies   {', '.join(policies)} (development" in welcome
    for url in policies:
        policy = WebsocketClientPolicy(url)
        assert policy.get_server_metadata()["policy"] == "assay-development"
        policy._ws.close()
    check_example(api)
    with Assay(api) as client:
        job = client.infer([{"query": "What is the capital of France?"}], sampling={"max_new_tokens": 12})
        (answer,) = job.wait(timeout_s=PATIENCE_S).results()
        assert "Paris" in answer.value["answers"][0], "SmolLM2 answers by default"
        assert "smollm2" in answer.value["model"]

    state_url = first.wait_for(r"(redis://\S+) \(state\)")[1]
    cache_url = first.wait_for(r"(redis://\S+) \(cache\)")[1]
    with (
        Redis.from_url(state_url, decode_responses=True) as state,
        Redis.from_url(cache_url, decode_responses=True) as cache,
    ):
        assert state.config_get("appendonly")["appendonly"] == "yes"
        assert state.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert cache.config_get("maxmemory-policy")["maxmemory-policy"] == "allkeys-lfu"
        state.set("kept", "state")
        cache.set("kept", "cache")

    assert first.stop(signal.SIGINT) == 0  # Ctrl-C
    assert first.survivors() == []

    second = run("python", "-m", "workers.up", **ports)
    state_url = second.wait_for(r"(redis://\S+) \(state\)")[1]
    cache_url = second.wait_for(r"(redis://\S+) \(cache\)")[1]
    with (
        Redis.from_url(state_url, decode_responses=True) as state,
        Redis.from_url(cache_url, decode_responses=True) as cache,
    ):
        assert state.get("kept") == "state"
        assert cache.get("kept") == "cache"
    second.stop(signal.SIGKILL)
    assert second.survivors() == [], "not even after kill -9"


def check_example(api: str) -> None:
    """Run examples/policy_client.py, and check the client's report on the policy servers that it used."""
    with Assay(api) as client:
        wait_until(lambda: client.pool_status()["connected"] == 2, "the workers report both policy servers")
        program = str(ROOT / "examples/policy_client.py")
        argv = [sys.executable, "-I", program, "single", "parallel", "remote", "--trials", "2", "--url", api]
        ended = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended
        (first, *_), (single, *_), (parallel, *lines), (remote, *_) = [
            part.splitlines() for part in ended.stdout.strip().split("\n\n")
        ]
        assert first == f"{api}: 2 of 2 policy servers connected, 0 busy"
        assert (single, parallel, remote.split(" in ")[0]) == ("single:", "parallel:", "remote: /health responds ok")
        assert [line.split(":")[0].split()[1:] for line in lines[:4]] == [
            [rate, "task", str(task)] for task, rate in enumerate(["100%", "100%", "100%", "0%"])
        ]
        assert lines[4].startswith("  8 episodes in ")
        job = client.job(lines[4].split("/")[-2])
        assert [row.score for row in job.results()] == [1.0, 1.0, 1.0, 0.0]
        wait_until(
            lambda: any(each["calls"] for each in client.pool_status()["servers"]), "the pool status counts their calls"
        )

    async def told() -> dict[str, Any]:
        async with AsyncAssay(api) as client:
            return await client.pool_status()

    assert asyncio.run(told())["total_clients"] == 2


def test_a_given_redis_is_used_and_none_is_started(run: Run, ports: dict[str, str], redis_url: str) -> None:
    up = run("python", "-m", "workers.up", **ports | {"ASSAY_REDIS_URL": redis_url})
    up.wait_for("Assay is up")
    assert f"{redis_url} (state), {redis_url} (cache)" in up.output
    assert not [each for each in up.descendants() if "redis-server" in " ".join(each.cmdline())]
    assert up.stop(signal.SIGINT) == 0


def test_no_development_api_is_started_where_an_api_is_configured(
    run: Run, ports: dict[str, str], tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('[profiles.main]\nbase_url = "http://127.0.0.1:9/v1"\nmodels = ["any"]\n')
    up = run("python", "-m", "workers.up", **ports | {"ASSAY_PROFILES_FILE": str(profiles)})
    assert f"Judge      the profiles in {profiles}" in up.wait_for(r"(?s)Assay is up.*Ctrl-C stops everything")[0]
    assert not [each for each in up.descendants() if "workers.development_api" in each.cmdline()]
    assert get(f"http://127.0.0.1:{ports['ASSAY_PORT']}/ready")["notes"] == []
    assert up.stop(signal.SIGINT) == 0


def test_no_policy_servers_are_started_where_some_are_given(run: Run, ports: dict[str, str]) -> None:
    up = run("python", "-m", "workers.up", **ports | {"GPU_HOST": "127.0.0.1", "GPU_PORTS": "9, 10"})
    welcome = up.wait_for(r"(?s)Assay is up.*Ctrl-C stops everything")[0]
    assert "Policies   ws://127.0.0.1:9, ws://127.0.0.1:10\n" in welcome
    assert not [each for each in up.descendants() if "policies" in each.cmdline()]
    assert up.stop(signal.SIGINT) == 0


@pytest.mark.parametrize(
    "variable", ["ASSAY_PORT", "ASSAY_FLOWER_PORT", "ASSAY_DEVELOPMENT_API_PORT", "ASSAY_POLICY_PORT"]
)
def test_a_port_in_use_is_reported_in_one_clear_line(run: Run, ports: dict[str, str], variable: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(ports[variable])))
        taken.listen()
        up = run("python", "-m", "workers.up", **ports)
        assert up.wait() == EXIT_MISCONFIGURED
    assert up.output == (
        f"Port {ports[variable]} on 127.0.0.1 cannot be used (Address already in use): "
        f"stop the process that listens there, or choose another port with {variable}=...\n"
    )


def test_a_data_folder_in_use_is_reported_in_one_clear_line(run: Run, ports: dict[str, str]) -> None:
    first = run("python", "-m", "workers.up", **ports)
    first.wait_for("redis-state started")
    second = run("python", "-m", "workers.up", **ports | {"ASSAY_PORT": str(free_port())})
    assert second.wait() == EXIT_MISCONFIGURED
    assert "is used by another `make up`" in second.output
    assert second.output.count("\n") == 1


def test_a_wrong_setting_is_reported_in_one_clear_line(run: Run, ports: dict[str, str]) -> None:
    up = run("python", "-m", "workers.up", **ports | {"ASSAY_SLOTS": "lots"})
    assert up.wait() == EXIT_MISCONFIGURED
    assert up.output == "ASSAY_SLOTS: must be a number of workers such as 4, or cpu:4 (it is 'lots')\n"
