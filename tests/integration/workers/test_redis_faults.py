"""Faults of Redis: absent, protected by a password, or out of disk. Each is logged in a clear line; work resumes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, ResponseError

from config import keys
from config.settings import Settings
from tasks.connections import connect, translate_redis_errors
from tasks.jobs.state.ledger import Ledger
from tasks.jobs.state.payloads import BLOCK_ITEMS, Payloads
from tasks.jobs.state.storage import Storage
from tasks.jobs.submission.upload import Upload, as_lines
from tests.conftest import NOWHERE
from tests.support.cut_connection import cut_after
from tests.support.programs import Program, wait_until
from tests.support.redis_server import RedisServer
from web.app import create_app
from workers.processes.supervisor import EXIT_MISCONFIGURED


def test_a_launcher_waits_for_redis_and_then_starts(run: Callable[..., Program], tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis")
    launcher = run("python", "-m", "workers.launch", "cpu", ASSAY_REDIS_URL=server.url)
    launcher.wait_for(rf"Redis at {server.url} does not answer \(.*refused.*\)\. Waiting for it\.")
    with server:
        launcher.wait_for(r"cpu\.\S+ ready")
        assert launcher.stop() == 0


def test_a_launcher_that_waits_for_redis_can_be_stopped(run: Callable[..., Program]) -> None:
    launcher = run("python", "-m", "workers.launch", "api", ASSAY_REDIS_URL=NOWHERE)
    launcher.wait_for("Waiting for it")
    assert launcher.stop() == 0


def test_a_missing_password_is_reported_without_waiting(run: Callable[..., Program], tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "state", "--requirepass", "hunter2") as server:
        launcher = run("python", "-m", "workers.launch", "device", ASSAY_REDIS_URL=server.url)
        assert launcher.wait() == EXIT_MISCONFIGURED
        assert "requires a password" in launcher.output
        assert "Traceback" not in launcher.output


def test_a_wrong_password_is_not_shown(run: Callable[..., Program], tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "state", "--requirepass", "hunter2") as server:
        url = server.url.replace("redis://", "redis://:letmein@")
        launcher = run("python", "-m", "workers.launch", "device", ASSAY_REDIS_URL=url)
        assert launcher.wait() == EXIT_MISCONFIGURED
        assert "refuses the given password" in launcher.output
        assert "letmein" not in launcher.output


def test_a_password_in_the_url_is_used_everywhere_and_never_logged(run: Callable[..., Program], tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "state", "--requirepass", "hunter2") as server:
        url = server.url.replace("redis://", "redis://:hunter2@")
        launcher = run("python", "-m", "workers.launch", "cpu", ASSAY_REDIS_URL=url)
        launcher.wait_for(r"cpu\.\S+ ready")
        workers = create_app(Settings(redis_url=url)).test_client().get("/v1/workers").json["workers"]
        assert [worker["pool"] for worker in workers] == ["cpu"]
        assert launcher.stop() == 0
        assert "hunter2" not in launcher.output


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full to stand for a full disk")
def test_a_full_disk_under_the_state_redis_is_named(run: Callable[..., Program], tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    parts = folder / "appendonlydir"  # of Redis 7; the file beside it is of Redis 6
    parts.mkdir()
    for file in (folder / "appendonly.aof", parts / "appendonly.aof.1.incr.aof"):
        file.symlink_to("/dev/full")
    with RedisServer(folder) as server:
        with connect(server.url) as client, translate_redis_errors(server.url):
            client.incr("anything")  # Redis accepts the write, and detects later that it cannot save to disk
            with pytest.raises(ResponseError, match="MISCONF"):
                wait_until(lambda: client.incr("anything") > 100_000, "a refusal")
        launcher = run("python", "-m", "workers.launch", "device", ASSAY_REDIS_URL=server.url)
        launcher.wait_for("refuses writes because it cannot save them; its disk is probably full")
        assert launcher.process.poll() is None, "it waits for the disk to be mended"
        reply = create_app(Settings(redis_url=server.url)).test_client().get("/ready")
        assert reply.status_code == 503
        assert "disk is probably full" in reply.json["missing"][0]


def test_a_state_redis_with_an_eviction_policy_causes_a_warning(run: Callable[..., Program], tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "cache", "--maxmemory", "256mb") as server:
        launcher = run("python", "-m", "workers.launch", "beat", ASSAY_REDIS_URL=server.url)
        launcher.wait_for("holds Assay's state but evicts keys")


@pytest.mark.parametrize("is_large", [False, True])
def test_keys_written_before_a_jobs_creation_have_a_ttl_wherever_their_writer_dies(
    redis_url: str, state: Redis, tmp_path: Path, is_large: bool
) -> None:
    storage = Storage(tmp_path.as_uri())
    items = [{"x": number} for number in range(2 * BLOCK_ITEMS + 1)]

    def write(client: Redis) -> None:
        if is_large:
            Upload(client, storage, Ledger(client), "job").write(as_lines(items), is_grouped=False)
        else:
            Payloads(client, storage).write("job", items)

    for number in range(0, 20_000, 61):
        with cut_after(redis_url, number) as client:
            try:
                write(client)
            except ConnectionError:
                pass
            else:
                break  # the whole script ran before the cut
        left = [key for key in state.keys("*") if state.ttl(key) == -1]
        assert set(left) <= {keys.staging()}, f"cut after {number} bytes"
    else:
        pytest.fail("it takes more bytes than were let through")
    assert state.keys(keys.job("*"))
