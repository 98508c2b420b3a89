"""A worker with a task in flight survives a restart of Redis. It is why celery is pinned: 5.7.0 exits here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from config.settings import Settings
from tasks.app import create_celery
from tests.programs import Program, wait_until
from tests.redis_server import RedisServer


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_with_a_task_in_flight_survives_a_redis_restart(
    pool: str, run: Callable[..., Program], tmp_path: Path
) -> None:
    with RedisServer(tmp_path / "redis") as server, server.client() as state:
        worker = run("python", "-m", "tests.integration.restart_worker", pool, ASSAY_REDIS_URL=server.url)
        worker.wait_for("restart@test ready")
        with create_celery(Settings(redis_url=server.url)) as app:
            app.publish("test.long", "cpu", "normal", key="first")
            wait_until(lambda: state.get("first:started"), "the task starts")
            server.stop()
            server.start()
            wait_until(lambda: state.get("first:ended"), "the task ends")
            assert worker.process.poll() is None, "the worker died"
            app.publish("test.long", "cpu", "normal", key="second")
            wait_until(lambda: state.get("second:ended"), "the worker takes new work")
        assert worker.stop() == 0
