"""Several hosts in network namespaces: one is cut off and comes back, one is killed, and each item has one outcome."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.cluster import HEARTBEAT_TTL_S, STORED_ITEMS, Cluster
from tests.support.network import Network, require_namespaces
from tests.support.programs import PATIENCE_S, Program


@pytest.fixture
def cluster(run: Callable[..., Program], tmp_path: Path) -> Iterator[Cluster]:
    require_namespaces()
    with Cluster.started(run, tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("cut_s", [HEARTBEAT_TTL_S, pytest.param(30.0, marks=pytest.mark.slow)])
def test_a_host_cut_off_and_a_host_killed_lose_nothing(cluster: Cluster, cut_s: float) -> None:
    first, second = cluster.workers
    cluster.work_until_it_holds(first, 3 * STORED_ITEMS)
    first.cut_off()
    until = time.monotonic() + cut_s
    cluster.wait_for_workers(first, 0)
    cluster.wait_until_it_holds_nothing(first)
    cluster.submit(100)
    time.sleep(max(0.0, until - time.monotonic()))
    first.reconnect()
    cluster.wait_for_workers(first)
    cluster.work_until_it_holds(second, 2 * STORED_ITEMS)
    second.kill()
    after = cluster.submit(100)
    cluster.finish()
    assert {name.split(".")[1] for each in after for name in each.job.view.workers} == {first.name}
    cluster.remove_jobs()


def test_a_connection_to_a_host_that_is_cut_off_stays_open_and_carries_nothing() -> None:
    require_namespaces()
    with Network("one", "other") as network:
        with network["one"].entered():
            server = socket.create_server((network["one"].address, 0))
        with network["other"].entered():
            client = socket.create_connection(server.getsockname(), PATIENCE_S)
        accepted, _ = server.accept()
        with server, client, accepted:
            network["other"].cut_off()
            client.sendall(b"late")
            accepted.settimeout(0.5)
            with pytest.raises(TimeoutError):
                accepted.recv(4)
            network["other"].reconnect()
            accepted.settimeout(PATIENCE_S)
            assert accepted.recv(4) == b"late"
