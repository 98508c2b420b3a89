"""The client against the real server: every scenario, a large upload, the example, and the command."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from assay import Assay

from tests.conftest import ROOT
from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.support import client_scenarios
from tests.support.programs import Program

SCENARIOS = [
    client_scenarios.submit_wait_and_read,
    client_scenarios.wait_in_the_submit,
    client_scenarios.stream_a_large_job,
    client_scenarios.find_the_same_job_by_its_key,
    client_scenarios.cancel_a_long_job,
    client_scenarios.be_refused,
]


@pytest.fixture
def served(run: Callable[..., Program], system: System) -> Served:
    return Served(
        run, system.state.url, ASSAY_CACHE_URL=system.cache.url, ASSAY_STORAGE_URL=system.settings.storage_url
    )


def test_every_scenario_holds_against_the_real_server(served: Served) -> None:
    for scenario in SCENARIOS:
        scenario(f"http://127.0.0.1:{served.port}")
    asyncio.run(client_scenarios.do_the_same_with_asyncio(f"http://127.0.0.1:{served.port}"))


def test_a_large_upload_stays_flat_in_memory(served: Served, system: System) -> None:
    number = 150_000
    web = [psutil.Process(served.program.process.pid), *served.program.descendants()]
    before = max(process.memory_info().rss for process in web)
    with Assay(f"http://127.0.0.1:{served.port}") as client:
        job = client.submit("simulated", ({"id": f"item-{n}", "x": "text " * 20} for n in range(number)), cache="off")
        assert system.job(job.id).layout.is_stored
        grown = max(process.memory_info().rss for process in web) - before
        assert grown < 60_000_000, "the body has 20 MB, and its items as objects ten times as much"
        job.cancel()


def test_the_command_scores_a_file(served: Served, tmp_path: Path) -> None:
    items = [{"id": str(n), "response": f"so it is {n}", "reference": str(n + n % 2)} for n in range(10)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    ended = run_python(
        served, tmp_path, "-m", "assay", "score", "items.jsonl", "--scorer", "numeric_match", "-o", "out.jsonl"
    )
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["score"] for row in rows] == [1.0 - n % 2 for n in range(10)]


def test_the_example_prints_rewards(served: Served, tmp_path: Path) -> None:
    ended = run_python(served, tmp_path, str(ROOT / "examples/score.py"))
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["1.00", "0.00", "0.00", "1.00"], ended


def run_python(served: Served, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that can import the client and no part of the server."""
    environment = {"ASSAY_URL": f"http://127.0.0.1:{served.port}", "PYTHONPATH": str(ROOT / "client/src")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
