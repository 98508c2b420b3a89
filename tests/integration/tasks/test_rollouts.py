"""Rollouts through the job core: samples are generated, rewarded and queued, within limits of room and staleness."""

import random

import pytest

from config import keys
from tasks.composition import create_core
from tasks.errors import Conflict
from tasks.jobs.model import Bundle
from tasks.jobs.state.ledger import Settled
from tasks.jobs.state.outcome import attached
from tasks.rollouts.rollouts import KEPT_ITEMS
from tests.support.fleet import Fleet
from tests.support.programs import wait_until
from tests.support.rollouts import SIMULATED, Stand


def test_prompts_go_through_generation_into_the_queue(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, **SIMULATED, max_queue_size=40, max_staleness=1)
    hand.work()
    assert stand.told("queue_size") == 16, "two versions of eight samples"
    assert stand.job.ok == 4
    batch = stand.get(8, whole=True, version=0)
    group = stand.groups(batch)[0]
    assert (group["param_version"], group["of"], group["item"]["prompt"][:7]) == (0, 4, "prompt ")
    assert group["samples"][0]["versions"] == [[0, 4]]
    hand.work()
    assert stand.told("queue_size") == 8, "a further batch is generated only for the next version"
    stand.get(8, whole=True, version=1)
    hand.work()
    assert stand.told("total_produced") == 24


def test_prompts_repeat_in_a_different_order_in_each_epoch(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=50, simulated={}, max_queue_size=150, train_batch_size=150, seed=3)
    stand.work(hand)
    groups = sorted(stand.groups(stand.get(150)), key=lambda group: int(group["index"]))
    epochs = [[group["item"]["id"] for group in groups[start : start + 50]] for start in (0, 50, 100)]
    assert all(sorted(epoch) == sorted(f"p{n}" for n in range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = Stand(fleet, prompts=50, simulated={}, max_queue_size=50, train_batch_size=50, seed=3)
    again.work(hand)
    same = sorted(again.groups(again.get(50)), key=lambda group: int(group["index"]))
    assert [group["item"]["id"] for group in same] == epochs[0], "the order follows from the seed"


def test_prompts_of_a_large_file_are_read_from_the_storage(fleet: Fleet) -> None:
    fleet.settings = fleet.settings.model_copy(update={"storage_shared": True, "stored_items": 100})
    fleet.core = create_core(fleet.settings, fleet.celery)
    hand = fleet.hire()
    stand = Stand(fleet, prompts=300, simulated={}, max_queue_size=400, train_batch_size=400)
    stand.work(hand)
    ids = [group["item"]["id"] for group in stand.groups(stand.get(400))]
    assert (len(ids), set(ids)) == (400, {f"p{n}" for n in range(300)})
    folder = fleet.settings.data_dir / "storage/jobs"
    assert len(list(folder.glob("*/items.jsonl"))) == 1
    fleet.core.cancel(stand.id)
    fleet.core.ledger.remove(stand.id)
    fleet.tick()
    assert list(folder.glob("*/*")) == []


def test_a_full_queue_pauses_generation_until_it_has_room(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, **SIMULATED, max_queue_size=22)
    for _ in range(3):
        hand.work()
    assert stand.told("queue_size") == 20, "five groups of four; a sixth does not fit"
    assert stand.told("samples_under_way") == 0
    batch = stand.get(4)
    hand.work()
    assert stand.told("queue_size") == 20
    stand.rollouts.queue.give_back(stand.id, batch.id)
    hand.work()
    assert (stand.told("queue_size"), stand.told("total_produced")) == (24, 24), (
        "a returned batch is accepted although the queue is full"
    )
    stand.get(8)
    hand.work()
    assert (stand.told("queue_size"), stand.told("total_produced")) == (20, 28)


def test_samples_put_by_a_client_leave_room_for_samples_under_way(fleet: Fleet) -> None:
    stand = Stand(fleet, prompts=5, **SIMULATED, max_queue_size=9)
    assert stand.told("samples_under_way") == 8
    assert stand.put(1)
    assert not stand.put(2)


def test_the_proportion_rule_counts_samples_per_version(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(
        fleet, prompts=5, **SIMULATED, max_queue_size=1000, rule="proportion", staleness_threshold=0.5,
        trigger_parameter_sync_step=2,
    )  # fmt: skip
    stand.work(hand)
    assert stand.told("total_produced") == 24, "8 * (1 + 0.5) * 2"
    stand.get(16)
    stand.work(hand)
    assert stand.told("total_produced") == 24
    stand.rollouts.announce(stand.id, 1, "file:///w", "")
    stand.work(hand)
    assert stand.told("total_produced") == 24 + 24 - 8, "queued samples count for the new version"


def sync(stand: Stand, device: str, number: int, succeeds: bool) -> None:
    """Announce a version as a trainer does, and let the only device confirm or fail it."""
    stand.fleet.core.state.hset(
        keys.rollout(stand.id), "simulated", 0
    )  # a simulated rollout would confirm the version at once
    stand.rollouts.announce(stand.id, number, f"file:///{number}", "")
    versions = stand.rollouts.versions
    version = versions.current(stand.id)
    if succeeds:
        versions.confirm(stand.id, device, version, 0.0)
    else:
        versions.fail(stand.id, device, version, "the file is broken")


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_batches_taken_after_a_rollback_are_generated_again(fleet: Fleet, staleness: int) -> None:
    hand = fleet.hire()
    device = hand.queue
    stand = Stand(fleet, prompts=5, **SIMULATED, max_staleness=staleness, max_queue_size=100)

    def train(version: int) -> None:
        stand.work(hand)
        batch = stand.get(8, version=version, whole=True)
        assert batch.samples == 8, f"the queue has a batch for version {version}"
        assert all(version - group["param_version"] <= staleness for group in stand.groups(batch))
        stand.rollouts.acknowledge(stand.id, batch.id)

    for version in range(3):
        train(version)
        sync(stand, device, version + 1, succeeds=True)
    for _ in range(4):
        train(3)
        sync(stand, device, 4, succeeds=False)
        assert stand.told("current_param_version") == 3, "the previous version is current again"
    for version in range(4, 7):
        sync(stand, device, version, succeeds=True)
        assert stand.told("current_param_version") == version
        train(version)
    stand.work(hand)
    assert stand.told("queue_size") == 8 * staleness, "the number of batches generated ahead is as before"
    assert stand.told("dropped_samples") == 0


def test_repeated_announcements_of_a_failing_version_generate_no_extra_samples(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, **SIMULATED, max_staleness=1, max_queue_size=100)
    for _ in range(5):
        stand.work(hand)
        sync(stand, hand.queue, 1, succeeds=False)
    stand.work(hand)
    assert stand.told("total_produced") == 16, "two versions of eight samples"


def test_a_rollout_can_begin_at_a_later_version(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, **SIMULATED, max_staleness=1, max_queue_size=100, version=5)
    assert stand.rollouts.sync_status(stand.id).version.number == 5
    stand.work(hand)
    assert {group["param_version"] for group in stand.groups(stand.get(8, version=5))} == {5}
    with pytest.raises(Conflict):
        stand.rollouts.announce(stand.id, 1, "file:///w", "")
    assert stand.rollouts.announce(stand.id, 6, "file:///w", "").version.number == 6
    for version in (6, 7):  # the batch for version 6 was begun with the weights of version 5
        stand.work(hand)
        batch = stand.get(8, version=version, whole=True)
        assert batch.samples == 8
        stand.rollouts.announce(stand.id, version + 1, "file:///w", "")
    assert stand.told("dropped_samples") == 0


def test_no_samples_are_generated_while_the_weights_are_too_stale_for_the_trainer(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, **SIMULATED, max_staleness=1, max_queue_size=100)
    stand.work(hand)
    assert stand.told("total_produced") == 16
    assert not stand.get(8, version=5).id
    stand.work(hand)
    assert (stand.told("dropped_samples"), stand.told("total_produced")) == (16, 16)
    stand.rollouts.announce(stand.id, 5, "file:///w", "")
    stand.work(hand)
    assert stand.get(8, version=5).samples == 8


def test_a_rollout_ends_after_its_number_of_prompts(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=3, **SIMULATED, total_rollout_steps=5)
    stand.work(hand)
    assert (stand.job.state, stand.job.ok, stand.told("queue_size")) == ("done", 5, 20)
    assert stand.get(20).samples == 20


def test_samples_under_way_are_limited_by_max_concurrent_samples(fleet: Fleet) -> None:
    stand = Stand(fleet, prompts=3, **SIMULATED, max_concurrent_samples=9)
    assert stand.told("samples_under_way") == 8


def test_prompts_of_a_dead_worker_are_generated_once(fleet: Fleet) -> None:
    first, second = fleet.hire(index=0), fleet.hire(index=1)
    stand = Stand(fleet, prompts=5, **SIMULATED, max_queue_size=40)
    chunks = first.take()
    first.begin(chunks)
    first.leave()
    fleet.core.ledger.reclaim(first.runner.incarnation, proven=True)
    fleet.core.ledger.unqueue(first.queue)  # as the maintenance tick does
    fleet.work(second)
    batch = stand.get(40)
    assert sorted(stand.indices(batch)) == list(range(10))
    assert stand.told("generation_errors") == 0


@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_of_events_no_batch_is_too_stale_and_no_sample_is_delivered_twice(fleet: Fleet, seed: int) -> None:
    chance = random.Random(seed)
    staleness, version, used = chance.randrange(3), 0, list[int]()
    devices = [fleet.hire(index=index) for index in range(2)]
    api = fleet.hire("api")
    stand = Stand(
        fleet, prompts=5, **SIMULATED | {"simulated": {"reward_s": 0.001}}, max_queue_size=chance.choice([12, 40]),
        max_staleness=staleness,
    )  # fmt: skip
    for _ in range(60):
        step = chance.random()
        if step < 0.5:
            chance.choice([*devices, api]).work()
        elif step < 0.65:
            version += 1
            stand.rollouts.announce(stand.id, version, f"file:///{version}", "")
        elif step < 0.75:
            stand.rollouts.hold(stand.id, chance.random() < 0.5)
        else:
            batch = stand.get(chance.choice([3, 8]), least=1, version=version, whole=chance.random() < 0.5)
            for group in stand.groups(batch) if batch.id else []:
                oldest = min(number for sample in group["samples"] for number, _ in sample["versions"])
                assert oldest == group["param_version"] >= version - staleness
                used += [4 * group["index"] + group["first"] + at for at in range(group["count"])]
        told = stand.rollouts.statistics(stand.id)
        assert told["queue_size"] + told["samples_under_way"] <= told["max_queue_size"]
        assert told["total_produced"] == len(used) + told["dropped_samples"] + told["queue_size"]
    assert len(set(used)) == len(used)
    stand.rollouts.hold(stand.id, False)
    stand.rollouts.announce(stand.id, version + 1, "file:///last", "")

    def has_batch() -> bool:
        fleet.work(*devices, api)
        return bool(stand.get(8, version=version + 1).id)

    wait_until(has_batch, "the rollout still delivers a batch after the random steps")


def test_a_repeated_commit_puts_its_samples_once(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, **SIMULATED, max_queue_size=40)
    (chunk, *_) = hand.take()
    hand.begin([chunk])
    bundle = attached(Bundle(0, 0, 4, 0, {"samples": [1, 2, 3, 4]}), 0.5)
    settled = [Settled(index, "ok", "", False, "", '{"status":"ok"}', bundle) for index in chunk.items]
    for _ in range(3):  # the reply was lost twice, so the worker repeats the commit
        fleet.core.ledger.commit(chunk, hand.worker.name, 0.1, settled)
    assert stand.told("queue_size") == 4 * len(chunk.items) == stand.told("total_produced")


def test_a_rewarded_sample_has_its_reward(fleet: Fleet) -> None:
    device, api = fleet.hire(), fleet.hire("api")
    spec = SIMULATED | {"simulated": {"reward_s": 0.001}}
    stand = Stand(fleet, prompts=5, **spec, max_queue_size=8)
    fleet.work(device, api)
    samples = stand.samples(stand.get(8))
    assert all(0 <= sample["reward"] <= 1 and sample["valid"] for sample in samples)
    assert len({sample["reward"] for sample in samples}) == 8


def test_kept_outcomes_are_few_and_contain_no_tokens(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, **SIMULATED | {"train_batch_size": 2000}, max_queue_size=2000)
    for _ in range(3):
        stand.work(hand)
        stand.rollouts.acknowledge(stand.id, stand.get(2000).id)
    stand.work(hand)
    assert stand.job.trimmed > 0
    rows = fleet.rows(stand.id)
    assert all("token_ids" not in str(row) for row in rows[:10])
    assert fleet.core.state.hlen(keys.job_outcomes(stand.id, "0")) <= KEPT_ITEMS


def test_bitmap_pages_of_deleted_outcomes_are_deleted_too(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, simulated={}, max_queue_size=9400, train_batch_size=9400)
    while stand.job.ok < 9400:  # more than one page of 8,192 items and the outcomes that are kept
        hand.work()
        fleet.tick()
    stage = fleet.core.store.stages(stand.id)[0]["name"]
    assert stand.job.trimmed == 9400 - KEPT_ITEMS
    assert fleet.core.state.keys(keys.job_passed(stand.id, stage, "*")) == [keys.job_passed(stand.id, stage, "1")]


def test_outcomes_after_an_unfinished_item_are_kept(fleet: Fleet) -> None:
    slow, quick = fleet.hire(), fleet.hire(index=1)
    stand = Stand(fleet, prompts=5, simulated={}, max_queue_size=4000, train_batch_size=4000)
    held = [index for chunk in slow.take() for index in chunk.items]
    fleet.work(quick)
    assert stand.job.ok > 2 * KEPT_ITEMS
    assert stand.job.trimmed == min(held)


def test_a_failed_item_counts_and_does_not_end_a_rollout(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, **SIMULATED, max_queue_size=40)
    (chunk, *_) = hand.take()
    hand.begin([chunk])
    failed = [Settled(index, "failed", "broken", False, "", '{"status":"failed"}') for index in chunk.items]
    fleet.core.ledger.commit(chunk, hand.worker.name, 0.1, failed, over=True)
    assert (stand.job.state, stand.job.failed) == ("running", len(chunk.items))


def test_a_pause_lasts_while_weights_are_synchronised(fleet: Fleet) -> None:
    hand = fleet.hire()
    stand = Stand(fleet, prompts=5, **SIMULATED, max_queue_size=40, max_staleness=3)
    hand.take()  # the worker holds the chunks and has not finished them
    held = stand.rollouts.hold(stand.id, True)
    assert (held.is_held, held.holds) == (True, False)
    fleet.core.ledger.reclaim(hand.runner.incarnation, proven=False)
    assert stand.rollouts.hold(stand.id).holds
    assert stand.rollouts.announce(stand.id, 1, "file:///w", "").state == "synced"
    for _ in range(3):
        fleet.tick()
        stand.work(hand)
    assert (stand.told("total_produced"), stand.told("is_paused")) == (0, True)
    assert stand.rollouts.hold(stand.id).holds
    assert not stand.rollouts.hold(stand.id, False).is_held
    stand.work(hand)
    assert {group["param_version"] for group in stand.groups(stand.get(32))} == {1}
