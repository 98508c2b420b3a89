"""`assay doctor`: healthy deployments pass, and every known problem is reported with a fix."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from assay.cli import exits
from assay.cli.main import main
from assay.doctor import host

from tests.conftest import NOWHERE, ROOT
from tests.support.redis_server import RedisServer
from tests.support.wire_server import WireServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WireServer]:
    monkeypatch.chdir(tmp_path)  # no checkout
    with WireServer() as server:
        monkeypatch.setenv("ASSAY_URL", server.url)
        for pool in ("device", "api", "cpu"):
            server.lists["workers"].append({"name": f"{pool}.a.0", "pool": pool, "state": "ready"})
        server.lists["devices"] = [{"queue": "gpu.a.0", "devices": ["0"], "memory_used_mb": 1, "memory_total_mb": 100}]
        server.lists["queues"] = [{"queue": "cpu", "waiting": 2, "workers": ["cpu.a.0"]}]
        yield server


def check(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, list[str]]]:
    """Run doctor. Return the exit code, and by level the findings with their fixes."""
    code = main(["doctor", "--json", *argv])
    found: dict[str, list[str]] = {"ok": [], "warn": [], "FAIL": [], "skip": []}
    for each in json.loads(capsys.readouterr().out)["checks"]:
        assert each["fix"] or each["level"] in ("ok", "skip"), "every problem has a fix"
        found[each["level"]].append(f"{each['name']}: {each['detail']} / {each['fix']}")
    return code, found


@pytest.mark.usefixtures("server")
def test_a_healthy_deployment_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = check(capsys)
    assert code == exits.OK
    assert not found["FAIL"]
    assert not found["warn"]
    assert {line.partition(":")[0] for line in found["ok"]} == {
        *("server", "clock", "version", "token", "ready", "workers", "devices", "queues")
    }
    assert [line.split(" /")[0] for line in found["skip"]] == [
        "API keys: not checked: the server does not report them",
        "policy servers: not checked: No such page. [HTTP 404]",
        "this host: not checked: the folder is not a server checkout; --checkout gives its path",
    ]


def test_the_output_has_a_line_and_a_fix_per_problem(server: WireServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.lists["queues"] = [{"queue": "cpu", "waiting": 2, "workers": []}]
    assert main(["doctor"]) == exits.FAILED
    said = capsys.readouterr().out
    assert "FAIL  queues          cpu has 2 messages and no worker\n" in said
    assert "fix: start a worker for this queue" in said


def test_a_job_is_repaired_and_nothing_else_is_checked(server: WireServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.held = True
    server.submit("simulated", [{"x": 1}, {"x": 2}], "")
    server.unplaced["job-0"] = 2
    assert main(["doctor", "--repair", "job-0"]) == exits.OK
    said = "job job-0 (running): 2 items that nothing would have run are pending again\n"
    assert capsys.readouterr().out == said
    assert main(["doctor", "--repair", "job-0"]) == exits.OK
    assert capsys.readouterr().out == "job job-0 (running): nothing to repair\n"
    assert main(["doctor", "--repair", "job-0", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == {"job": "job-0", "repaired": 0, "state": "running"}
    assert main(["doctor", "--repair", "job-9"]) == exits.REFUSED


def test_an_unreachable_server_fails(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = check(capsys, "--url", "http://127.0.0.1:9", "--checkout", "nowhere")
    assert code == exits.FAILED
    assert "set ASSAY_URL" in found["FAIL"][0]


def test_a_wrong_token_fails(capsys: pytest.CaptureFixture[str], server: WireServer) -> None:
    server.token = "s3cret"
    code, found = check(capsys)
    assert code == exits.FAILED
    assert "set ASSAY_TOKEN" in found["FAIL"][0]


def test_a_storage_that_is_unavailable_fails_with_its_cause(
    capsys: pytest.CaptureFixture[str], server: WireServer
) -> None:
    note = "storage file:///data cannot be written by a: No space left on device; 3 parts of 1 job wait"
    server.ready = {"ready": True, "missing": [], "notes": ["judging uses the development API", note]}
    code, found = check(capsys)
    assert code == exits.FAILED
    (line,) = found["FAIL"]
    assert line.startswith(f"storage: {note} / free space")


def test_a_clock_difference_is_a_warning(capsys: pytest.CaptureFixture[str], server: WireServer) -> None:
    server.clock_s = -90
    code, found = check(capsys)
    assert code == exits.OK
    assert "ahead of the server" in found["warn"][0]


def test_a_missing_pool_fails_with_the_command_to_start_it(
    capsys: pytest.CaptureFixture[str], server: WireServer
) -> None:
    server.ready = {"ready": False, "missing": ["no api worker is ready", "Redis at redis://x does not answer"]}
    code, found = check(capsys)
    assert code == exits.FAILED
    assert "python -m workers.launch api" in found["FAIL"][0]
    assert "ASSAY_REDIS_URL" in found["FAIL"][1]


def test_full_devices_paused_queues_and_mixed_versions_are_warnings(
    capsys: pytest.CaptureFixture[str], server: WireServer
) -> None:
    server.lists["devices"][0]["memory_used_mb"] = 99
    server.lists["queues"][0]["paused"] = True
    server.lists["workers"][0]["versions"] = {"torch": "2.1"}
    server.lists["workers"][1] |= {"versions": {"torch": "2.2"}, "state": "starting"}
    _, found = check(capsys)
    assert len(found["warn"]) == 4
    assert "99 of 100 MB" in found["warn"][2]


def policy(port: int, **state: Any) -> dict[str, Any]:
    states = {"connected": True, "busy": False, "broken": False, "elsewhere": False, "error": ""}
    says = {"policy": "pi0", "version": "3", "digest": "d"}
    counts = {"calls": 7, "errors": 0, "reconnects": 1, "latency_ms": 51.234}
    return {"url": f"ws://gpu1:{port}"} | states | says | counts | state


AWAY = {"connected": False, "broken": True, "error": "ws://gpu1:8001 cannot be reached"}


@pytest.mark.parametrize(
    ("servers", "level", "told"),
    [
        ([policy(8000), policy(8001)], "ok", "2 of 2 connected: pi0 3 /"),
        ([policy(8000, policy="assay-development")], "ok", "its success rates mean nothing"),
        ([], "warn", "make policies"),
        ([policy(8001, digest="", **AWAY)], "warn", "0 of 1 connected: ws://gpu1:8001 cannot be reached / start"),
        ([policy(8001, **AWAY)], "FAIL", "cannot be reached / look at its log"),
        ([policy(8000), policy(8001, digest="", **AWAY)], "FAIL", "cannot be reached / look at its log"),
        ([policy(8000, **AWAY | {"error": "It refuses the API key."})], "FAIL", "ASSAY_POLICY_API_KEY"),
        ([policy(8000), policy(8001, connected=False)], "warn", "8001 is not connected yet / wait"),
        ([policy(8000), policy(8001, connected=False, elsewhere=True)], "warn", "in use by another process / start"),
        ([policy(8000), policy(8001, version="4")], "warn", "restart the servers"),
        ([policy(8000, version="")], "warn", "ASSAY_POLICY_VERSION"),
    ],
)
def test_each_policy_server_is_checked(
    capsys: pytest.CaptureFixture[str], server: WireServer, servers: list[dict[str, Any]], level: str, told: str
) -> None:
    server.pool = {"servers": servers}
    code, found = check(capsys)
    lines = {name: [line for line in found[name] if line.startswith("policy servers: ")] for name in found}
    assert told in lines[level][-1]
    assert code == (exits.FAILED if level == "FAIL" else exits.OK)
    assert sum(map(len, lines.values())) == 1 + (level != "ok" and any(each["connected"] for each in servers))


def test_the_command_lists_policy_servers(capsys: pytest.CaptureFixture[str], server: WireServer) -> None:
    server.pool = {"servers": [policy(8000, busy=True), policy(8001, **AWAY)]}
    assert main(["policies"]) == exits.OK
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.split() == ["ws://gpu1:8000", "busy", "pi0", "3", "7", "0", "1", "51.2", "ms"]
    assert second.split()[:2] == ["ws://gpu1:8001", "broken"]
    assert main(["policies", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == server.pool["servers"]


def test_api_profiles_of_a_newer_server_are_checked(capsys: pytest.CaptureFixture[str], server: WireServer) -> None:
    server.ready |= {"api_profiles": [{"name": "judge", "ok": False, "detail": "no key is set"}]}
    _, found = check(capsys)
    assert found["FAIL"] == ["API keys: judge: no key is set / correct it in the server's settings"]


def test_a_host_with_a_checkout_is_checked_too(
    capsys: pytest.CaptureFixture[str], server: WireServer, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server.server_address[1]
    monkeypatch.setenv("ASSAY_PORT", str(port))
    monkeypatch.setenv("ASSAY_REDIS_URL", redis_server.url)
    _, found = check(capsys, "--checkout", str(ROOT))
    text = "\n".join(found["ok"])
    assert f"API port: 127.0.0.1:{port} is in use by Assay" in text
    assert all(name in text for name in ("Python:", "Flower port:", "Redis:", "disk:"))
    monkeypatch.setenv("ASSAY_REDIS_URL", NOWHERE)
    monkeypatch.setenv("ASSAY_PORT", str(redis_server.port))
    _, found = check(capsys, "--checkout", str(ROOT))
    assert [line.partition(":")[0] for line in found["FAIL"]] == ["API port", "Redis"]


def test_a_gpu_with_full_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho '0, NVIDIA A100, 70000, 71000'\necho '1, NVIDIA A100, 10, 71000'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert [(found.level, found.detail[:1]) for found in host.gpus()] == [("warn", "0"), ("ok", "1")]
