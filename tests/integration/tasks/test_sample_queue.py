"""Bounded sample queue: delivers each sample to a single consumer, drops samples that are too stale, and loses none."""

import json

import pytest
from redis import Redis

from config import keys
from tasks.composition import create_core
from tasks.errors import Conflict
from tasks.jobs.state.storage import values_path
from tests.support.fleet import Fleet
from tests.support.programs import wait_until
from tests.support.rollouts import Stand


@pytest.fixture
def queue(fleet: Fleet) -> Stand:
    return Stand(fleet, max_staleness=3, max_queue_size=10)


def test_a_sample_too_stale_for_the_trainer_is_refused_and_counted(queue: Stand) -> None:
    """The example of the rollout document: version 1 is too stale for a trainer at version 5, and version 2 is not."""
    assert queue.put({"text": "a"}, version=1)
    batch = queue.get(version=5)
    assert (batch.id, batch.dropped, batch.queued) == ("", 1, 0)
    assert queue.told("dropped_stale_samples") == 1
    assert queue.put({"text": "b"}, version=2)
    assert queue.samples(queue.get(version=5)) == [{"text": "b"}]


def test_samples_are_delivered_once_and_in_order(queue: Stand) -> None:
    queue.put(1, 2, 3)
    queue.put(4, 5)
    assert queue.samples(queue.get(2)) == [1, 2]
    assert queue.samples(queue.get(2)) == [3, 4]
    assert not queue.get(2).id, "a single sample is left"
    assert queue.samples(queue.get(2, least=1)) == [5]


def test_a_put_is_idempotent_by_its_token(queue: Stand) -> None:
    for _ in range(3):
        assert queue.put(1, 2, token="t")
    assert queue.told("queue_size") == 2


def test_a_full_queue_refuses_samples_and_loses_none(queue: Stand) -> None:
    assert queue.put(*range(8))
    assert not queue.put(8, 9, 10), "a put is atomic: every sample fits, or the put is refused"
    assert queue.put(8, 9)
    assert not queue.put(10)
    assert queue.samples(queue.get(10)) == list(range(10))
    assert queue.put(10)


def test_a_get_can_acknowledge_the_previous_batch(queue: Stand) -> None:
    queue.put(1, 2, 3)
    first = queue.get(consumer="trainer")
    second = queue.get(consumer="trainer", acknowledge=first.id)
    assert (second.acknowledged, queue.samples(second)) == (1, [2])
    again = queue.get(consumer="trainer", acknowledge=first.id)
    assert (again.acknowledged, queue.samples(again)) == (0, [2]), (
        "a repeated call after a lost reply gets the same batch"
    )
    assert queue.rollouts.acknowledge(queue.id, again.id) == 1
    assert queue.rollouts.acknowledge(queue.id, again.id) == 0
    assert queue.told("total_consumed") == 2


def test_a_trainer_that_restarts_without_acknowledging_gets_its_batch_again(queue: Stand) -> None:
    queue.put(1, 2, 3, 4)
    lost = queue.get(2, consumer="trainer")
    assert queue.samples(queue.get(2, consumer="trainer")) == [1, 2]
    assert queue.rollouts.acknowledge(queue.id, lost.id) == -1
    assert queue.told("returned_samples") == 2


def test_a_batch_with_an_expired_lease_goes_to_another_consumer(queue: Stand) -> None:
    queue.put(1, 2)
    dead = queue.get(2, lease_s=0.001)
    wait_until(lambda: queue.get(2, consumer="other").id != "", "the lease expires")
    assert queue.rollouts.acknowledge(queue.id, dead.id) == -1
    assert queue.told("total_consumed") == 0


def test_the_maintenance_tick_returns_batches_with_expired_leases(fleet: Fleet, queue: Stand) -> None:
    queue.put(1, 2)
    queue.get(2, lease_s=0.001)
    wait_until(lambda: bool(fleet.tick() or queue.told("queue_size") == 2), "the batch is back in the queue")


def test_two_trainers_share_a_queue(queue: Stand) -> None:
    queue.put(*range(6))
    batches = [queue.get(2, consumer=name) for name in ("a", "b", "c")]
    assert [queue.samples(batch) for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert sum(queue.rollouts.acknowledge(queue.id, batch.id) for batch in batches) == 6


def test_groups_stay_whole_on_request(queue: Stand) -> None:
    for start in (0, 3, 6):
        queue.put(*range(start, start + 3), group=True)
    assert queue.samples(queue.get(4, whole=True)) == [0, 1, 2, 3, 4, 5], (
        "whole groups, until they contain the requested number of samples"
    )
    part = queue.get(2)
    assert (queue.samples(part), queue.groups(part)[0]["of"]) == ([6, 7], 3)
    rest = queue.get(1)
    assert queue.samples(rest) == [8]
    for batch in (part, rest):
        queue.rollouts.acknowledge(queue.id, batch.id)
    heads = queue.fleet.core.state.hkeys(keys.rollout_heads(queue.id))
    assert sorted(heads) == ["1", "2"], "a bundle is deleted with its last sample"


def test_samples_put_in_a_single_call_can_be_taken_separately(queue: Stand) -> None:
    queue.put(*range(7))
    batches = [queue.get(2, whole=True) for _ in range(3)]
    assert [queue.samples(batch) for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    queue.rollouts.queue.give_back(queue.id, batches[1].id)
    assert queue.samples(queue.get(3)) == [2, 3, 6]


def test_samples_too_long_for_redis_are_kept_in_files_until_acknowledged(fleet: Fleet) -> None:
    fleet.settings = fleet.settings.model_copy(update={"storage_shared": True})
    queue = Stand(fleet, max_queue_size=100)
    texts = [f"{n:02}" * 300_000 for n in range(20)]
    for text in texts:
        queue.put(text)
    folder = fleet.settings.data_dir / "storage/jobs" / queue.id / "values"
    assert len(list(folder.iterdir())) == 20
    assert fleet.core.state.hstrlen(keys.rollout_bodies(queue.id), "1") < 100
    batch = queue.get(20)
    assert queue.samples(batch) == texts
    queue.rollouts.acknowledge(queue.id, batch.id)
    assert list(folder.iterdir()) == []


def test_a_batch_larger_than_a_reply_is_read_in_pages(queue: Stand) -> None:
    texts = [f"{n:02}" * 15_000 for n in range(80)]
    big = Stand(queue.fleet, max_queue_size=200)
    for text in texts:
        big.put(text)
    batch = big.get(80)
    missing = sum(not part.body for part in batch.parts)
    assert 16 < missing < 80
    assert big.samples(batch) == texts


def test_an_ended_rollout_refuses_new_samples_but_delivers_its_queued_samples(queue: Stand) -> None:
    queue.put(1)
    queue.fleet.core.cancel(queue.id)
    with pytest.raises(Conflict, match="has ended"):
        queue.put(2)
    assert queue.samples(queue.get()) == [1]


def test_a_removed_rollout_leaves_no_keys(fleet: Fleet, queue: Stand) -> None:
    queue.put(1, 2, 3, version=2)
    queue.get(1, consumer="a", version=3)
    queue.rollouts.acknowledge(queue.id, queue.get(1).id)
    fleet.core.cancel(queue.id)
    fleet.core.ledger.remove(queue.id)
    assert fleet.core.state.keys(f"*{queue.id}*") == []
    assert fleet.core.state.smembers(keys.rollouts()) == set()


def test_an_idle_rollout_is_cancelled(fleet: Fleet, queue: Stand) -> None:
    fleet.core.ledger.tend(3600)
    assert queue.job.state == "queued"
    fleet.core.state.hset(keys.rollout(queue.id), "touched_at", 1)
    fleet.core.ledger.tend(3600)
    assert (queue.job.state, queue.job.reason) == ("cancelled", "idle")


@pytest.mark.parametrize("where", ["redis", "storage"])
def test_samples_with_a_lost_body_are_dropped_and_the_queue_continues(
    fleet: Fleet, state: Redis, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fleet.settings = fleet.settings.model_copy(update={"storage_shared": True})
    fleet.core = create_core(fleet.settings, fleet.celery)
    monkeypatch.setattr("tasks.jobs.state.large_values.ATTACHMENT_BYTES", 2000 if where == "storage" else 1 << 20)
    queue = Stand(fleet, max_queue_size=100)
    for number in range(4):
        assert queue.put(*(f"{number}-{x}" * 1000 for x in range(2)), group=True)
    used = queue.get(2, whole=True)
    if where == "redis":
        state.hdel(keys.rollout_bodies(queue.id), "2", "4")
    else:
        stubs = state.hmget(keys.rollout_bodies(queue.id), ["2", "4"])
        for stub in stubs:
            name = json.loads(str(stub))["~stored"][0]
            (fleet.settings.data_dir / "storage" / values_path(queue.id, name)).unlink()
    batch = queue.get(2, whole=True, acknowledge=used.id)
    assert batch.acknowledged == 2
    assert [sample[:3] for sample in queue.samples(batch)] == ["2-0", "2-1"]
    assert queue.get(2, whole=True).id == "", "the last samples are lost too"
    assert (queue.told("lost_samples"), queue.told("queue_size"), queue.told("leased_samples")) == (4, 0, 2)
    assert queue.put("x"), "the queue has room again"
    queue.rollouts.acknowledge(queue.id, batch.id)
    assert queue.samples(queue.get(1)) == ["x"]
