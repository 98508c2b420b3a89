"""Registry of workers: records with a TTL that heartbeats renew, and names that only one live worker may hold."""

import time
from dataclasses import replace

import pytest
from redis import Redis

from config import keys
from tasks.errors import WorkerNameTaken
from tasks.worker_registry import Gpu, Registry, Worker
from tests.support.programs import wait_until

WORKER = Worker(
    name="gpu.node1.0",
    pool="device",
    node="node1",
    host="box",
    pid=42,
    incarnation="first",
    launcher="launcher-a",
    queues=("gpu.node1.0",),
    slot=0,
    devices=("0", "1"),
    versions={"celery": "5.6.3"},
    models=("smollm2",),
    state="ready",
    active=1,
    memory_mb=700,
    cpu_s=3.25,
    busy_s=2.5,
    gpus=(Gpu("0", "GPU-a", 0.5, 1000, 16000), Gpu("1", "MIG-b", None, 0, 8000)),
)


@pytest.fixture
def registry(state: Redis) -> Registry:
    return Registry(state, lifetime_s=600)


def test_a_workers_record_is_read_as_it_was_written(registry: Registry) -> None:
    registry.announce(WORKER)
    (seen,) = registry.workers()
    assert replace(seen, beat_at=0.0) == WORKER
    assert abs(seen.beat_at - time.time()) < 60


def test_the_record_of_a_worker_without_heartbeat_expires(state: Redis) -> None:
    registry = Registry(state, lifetime_s=0.3)
    registry.announce(WORKER)
    wait_until(lambda: registry.workers() == [], "the record expires")
    assert state.keys("assay:*") == []


def test_the_name_of_a_live_worker_is_refused_to_a_second_launcher(registry: Registry) -> None:
    registry.announce(WORKER)
    with pytest.raises(WorkerNameTaken, match=r"gpu.node1.0 is held by a live worker \(pid 42 on box\)"):
        registry.announce(replace(WORKER, incarnation="second", launcher="launcher-b", pid=43))


def test_the_same_slot_on_two_nodes_has_two_names(registry: Registry) -> None:
    registry.announce(WORKER)
    registry.announce(replace(WORKER, name="gpu.node2.0", node="node2", incarnation="other", launcher="launcher-b"))
    assert [worker.name for worker in registry.workers()] == ["gpu.node1.0", "gpu.node2.0"]


def test_a_launcher_replaces_its_own_dead_worker_at_once(registry: Registry) -> None:
    registry.announce(WORKER)
    registry.announce(replace(WORKER, incarnation="second", pid=43, models=()))
    (seen,) = registry.workers()
    assert (seen.incarnation, seen.pid, seen.models) == ("second", 43, ())


def test_a_leaving_worker_deletes_only_its_own_record(registry: Registry) -> None:
    registry.announce(WORKER)
    registry.announce(replace(WORKER, incarnation="second"))
    registry.leave(WORKER)
    assert [worker.incarnation for worker in registry.workers()] == ["second"]
    registry.leave(replace(WORKER, incarnation="second"))
    assert registry.workers() == []


def test_fields_of_a_newer_release_are_ignored(registry: Registry, state: Redis) -> None:
    registry.announce(WORKER)
    state.hset(keys.worker(WORKER.name), "invented_later", "17")
    assert [worker.name for worker in registry.workers()] == [WORKER.name]


def test_the_models_of_a_child_process_survive_its_parents_heartbeat(registry: Registry) -> None:
    registry.announce(WORKER)
    registry.report_models(WORKER, ["a", "b"], loading="c", weights={"a": "4f"})
    registry.announce(WORKER)  # the parent does not know its child's models
    (found,) = registry.workers()
    assert (found.models, found.loading, found.weights) == (("a", "b"), "c", {"a": "4f"})
    registry.announce(replace(WORKER, incarnation="second", models=()))
    (found,) = registry.workers()
    assert (found.models, found.loading, found.weights) == ((), "", {}), (
        "the models are deleted with the record of their process"
    )
