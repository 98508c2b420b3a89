"""Faults of the soak that set a real Redis back to an earlier moment."""

import signal
from collections.abc import Callable
from pathlib import Path

from bench.soak import earlier_state
from tests.support.programs import wait_until
from tests.support.redis_server import RedisServer

Fault = Callable[[Path], Callable[[], object]]
"""Called with the folder of a Redis; returns a function to be called once it is killed."""


def written(server: RedisServer, folder: Path, fault: Fault) -> list[str]:
    """Write `before` and `after` to a Redis, with a fault in between that a kill follows. Return the keys that are
    there when the server has started again."""
    with server.client() as client:
        client.set("before", "1")
        finish = fault(folder)
        client.set("after", "1")
    server.stop(signal.SIGKILL)
    finish()
    server.start()
    with server.client() as client:
        return sorted(map(str, client.keys("*")))


def test_a_rollback_of_redis_loses_the_last_writes_and_no_others(tmp_path: Path) -> None:
    def fault(folder: Path) -> Callable[[], object]:
        file = earlier_state.growing_file(folder)
        assert file
        size, inode = file.stat().st_size, file.stat().st_ino
        return lambda: earlier_state.cut_back(file, size, inode)

    with RedisServer(tmp_path / "state") as server:
        assert written(server, tmp_path / "state", fault) == ["before"]


def test_a_failover_to_a_replica_that_lags_loses_the_last_writes_and_no_others(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "state") as server, earlier_state.replica_of(server.port, tmp_path) as replica:

        def fault(folder: Path) -> Callable[[], object]:
            assert replica.follow()
            wait_until(lambda: replica.knows("before"), "the replica has the write")
            replica.cut_off()
            snapshot = replica.save()
            return lambda: earlier_state.install(folder, snapshot)

        assert written(server, tmp_path / "state", fault) == ["before"]
