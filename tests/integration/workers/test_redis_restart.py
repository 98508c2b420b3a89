"""A worker with a task in flight survives a restart of Redis. This is why celery is pinned: 5.7.0 exits here."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from config.settings import Settings
from tasks.app import create_celery
from tasks.probe import ask
from tasks.worker_registry import Registry
from tests.support.programs import PATIENCE_S, Program, wait_until
from tests.support.redis_server import RedisServer


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_with_a_task_in_flight_survives_a_redis_restart(
    pool: str, run: Callable[..., Program], tmp_path: Path
) -> None:
    with RedisServer(tmp_path / "redis") as server, server.client() as state:
        may_end = tmp_path / "may-end"
        worker = run("python", "-m", "tests.integration.restart_worker", pool, str(may_end), ASSAY_REDIS_URL=server.url)
        worker.wait_for("restart@test ready")
        with create_celery(Settings(redis_url=server.url)) as app:
            app.publish("test.long", "cpu", "normal", key="first")
            wait_until(lambda: state.get("first:started"), "the task starts")
            server.stop()
            server.start()
            may_end.touch()
            wait_until(lambda: state.get("first:ended"), "the task ends")
            assert worker.process.poll() is None, "the worker died"
            app.publish("test.long", "cpu", "normal", key="second")
            wait_until(lambda: state.get("second:ended"), "the worker takes new work")
        assert worker.stop() == 0


def test_a_worker_leaks_no_connection_after_a_restart_of_redis(run: Callable[..., Program], tmp_path: Path) -> None:
    """A leak would keep a socket per restart, with the kombu objects that refer to it, until the worker ends."""
    with RedisServer(tmp_path / "redis") as server, server.client() as state:
        launcher = run("python", "-m", "workers.launch", "cpu", ASSAY_REDIS_URL=server.url)
        registry = Registry(state, lifetime_s=6)
        (worker,) = wait_until(lambda: [each for each in registry.workers() if each.state == "ready"], "it is there")  # type: ignore[misc]  # a list

        def dead_connections() -> int:
            return sum(each.status == psutil.CONN_CLOSE_WAIT for each in psutil.Process(worker.pid).net_connections())

        with create_celery(Settings(redis_url=server.url)) as app:
            for _ in range(4):
                server.stop()
                server.start()
                assert ask(app, state, "cpu", timeout_s=PATIENCE_S), "the worker takes new work"
        assert psutil.Process(worker.pid).is_running(), "the same one"
        wait_until(lambda: dead_connections() < 2, "it lets go of dead connections")  # an idle connection may reconnect
        assert launcher.stop() == 0
