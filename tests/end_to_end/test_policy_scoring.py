"""Policy scoring with the real processes: servers and workers die during an episode, and servers start late."""

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.jobs.model import JobRequest
from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.support.ports import free_ports
from tests.support.programs import PATIENCE_S, Program, wait_until
from tests.support.redis_server import RedisServer
from workers.development_policy.control import Handle

Run = Callable[..., Program]
COLOURS = ("red", "green", "blue", "yellow")


class Robots:
    """Two device slots with a policy server each."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.ports = free_ports(2)
        self.environment = {
            "ASSAY_POLICY_PORT": str(self.ports[0]), "ASSAY_POLICY_SILENT_S": "10", "ASSAY_POLICY_REPLY_S": "15",
            "ASSAY_POLICY_WAIT_S": "300",
        }  # fmt: skip
        self.keeper: Program | None = None

    def start(self, *pools: str) -> None:
        for pool in pools:
            launcher = self.system.launch(pool, **self.environment)
            if pool == "policies":
                self.keeper = launcher

    def connected(self) -> int:
        workers = self.system.core.registry.workers()
        return sum(server.connected for worker in workers for server in worker.policies)

    def handle(self, number: int) -> Handle:
        return Handle(f"ws://127.0.0.1:{self.ports[number]}")

    def kill(self, number: int) -> None:
        """Kill a policy server; wait for it first, should it be between two starts."""
        wait_until(lambda: self.pid(number), "the policy server runs")
        psutil.Process(self.pid(number)).kill()

    def pid(self, number: int) -> int:
        """Return the process id of a policy server, or 0 while it does not run."""
        assert self.keeper
        for process in self.keeper.descendants():
            with suppress(psutil.NoSuchProcess):
                if str(self.ports[number]) in process.cmdline():
                    return process.pid
        return 0

    def slow(self, latency_ms: int) -> None:
        for number in range(2):
            self.handle(number).set(latency_ms=latency_ms)

    def submit(self, items: int, trials: int = 2) -> str:
        """Submit instructions, of which every fourth is the right instruction for the task."""
        self.system.core.dispatcher.forget_fleet()
        options = {"trials": trials, "task_id": 0}
        responses = [{"response": f"reach the {COLOURS[at % 4]} target"} for at in range(items)]
        spec = {"scorers": [{"name": "policy", "options": options}]}
        return self.system.core.submitter.submit(JobRequest(kind="score", items=responses, spec=spec))

    def scores(self, job: str) -> list[Any]:
        ended = self.system.finish(job)
        assert (ended.state, ended.failed) == ("done", 0), self.system.rows(job)
        return [row["score"] for row in self.system.rows(job)]


@pytest.fixture
def robots(run: Run, tmp_path: Path) -> Iterator[Robots]:
    with RedisServer(tmp_path / "state") as state, RedisServer(tmp_path / "cache", "cache") as cache:
        system = System(run, state, cache, tmp_path / "journal")
        yield Robots(system)
        system.stop()


@pytest.fixture
def running(robots: Robots) -> Robots:
    robots.start("policies", "device", "cpu")
    wait_until(lambda: robots.connected() == 2, "both servers are connected")
    return robots


def expected(items: int) -> list[float]:
    return [float(at % 4 == 0) for at in range(items)]


def test_servers_killed_during_an_episode_are_restarted_and_the_job_completes(running: Robots) -> None:
    running.slow(30)
    job = running.submit(8)
    for number in range(2):
        wait_until(lambda number=number: running.handle(number).counts().get("calls", 0) > 2, "episodes run")
        running.kill(number)
    assert running.scores(job) == expected(8)
    servers = {each["server"] for row in running.system.rows(job) for each in row["value"]["episodes"]}
    assert len(servers) == 2


def test_a_wedged_server_is_restarted_and_its_episodes_run_again(running: Robots) -> None:
    running.slow(30)
    first = running.pid(0)
    running.handle(0).set(share_wedge=1)
    job = running.submit(4)
    assert running.scores(job) == expected(4)
    wait_until(lambda: running.pid(0) not in (0, first), "the server has restarted")


def test_a_device_worker_killed_during_an_episode_loses_nothing(running: Robots) -> None:
    running.slow(30)
    job = running.submit(8)
    wait_until(lambda: running.handle(0).counts().get("calls", 0) > 2, "episodes run")
    os.kill(running.system.children()[0].pid, signal.SIGKILL)
    assert running.scores(job) == expected(8)


def test_a_call_outlives_gunicorns_timeout(running: Robots, run: Run) -> None:
    """The timeout is for a process that hangs, not for a request that waits: a call may take half an hour."""
    served = Served(
        run, running.system.state.url, ASSAY_CACHE_URL=running.system.cache.url, GUNICORN_CMD_ARGS="--timeout 2"
    )
    for number in range(2):
        running.handle(number).set(hold=True)
    body = {"responses": ["reach the red target"], "reward_function_kwargs": {"num_trials_per_task": 1}}
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(served.ask, "POST", "/score", body)
        wait_until(lambda: any(running.handle(at).counts().get("in_flight") for at in range(2)), "the episode runs")
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 5, "gunicorn would have killed a process that hangs")
        for number in range(2):
            running.handle(number).set(hold=False)
        status, reply = pending.result(PATIENCE_S)
    assert (status, reply["done_result"]) == (200, [1.0])


def test_servers_that_start_late_are_used_and_workers_do_not_wait_for_them(robots: Robots) -> None:
    robots.start("device", "cpu")
    robots.system.wait_for_workers(3)
    job = robots.submit(2)
    assert robots.connected() == 0
    robots.start("policies")
    assert robots.scores(job) == expected(2)


def test_given_servers_are_dealt_out_to_the_slots(robots: Robots) -> None:
    robots.start("policies")
    given = {"GPU_HOST": "127.0.0.1", "GPU_PORTS": ",".join(map(str, robots.ports))}
    robots.system.launch("device", **given)
    robots.system.launch("cpu", **given)
    wait_until(lambda: robots.connected() == 2, "both are connected")
    owned = {
        worker.name: [server.port for server in worker.policies] for worker in robots.system.core.registry.workers()
    }
    assert [owned[f"gpu.node1.{slot}"] for slot in range(2)] == [[port] for port in robots.ports]
    assert robots.scores(robots.submit(2)) == expected(2)


def test_a_stopped_device_worker_gives_its_server_back_and_leaves_nothing_behind(running: Robots) -> None:
    (launcher,) = [each for each in running.system.launchers if "workers.launch device" in _command(each)]
    assert launcher.stop() == 0
    assert launcher.survivors() == []
    assert not list(running.system.core.state.scan_iter("assay:policy:*"))
    with urllib.request.urlopen(f"http://127.0.0.1:{running.ports[0]}/healthz", timeout=PATIENCE_S) as reply:
        assert reply.status == 200


def _command(program: Program) -> str:
    try:
        return " ".join(psutil.Process(program.process.pid).cmdline())
    except psutil.NoSuchProcess:
        return ""
