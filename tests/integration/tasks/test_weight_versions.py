"""Versions of a rollout's weights: announced, confirmed, taken back."""

import json

import pytest
from redis import Redis

from config import keys
from tasks.errors import Conflict
from tasks.inference.engine import ModelRef
from tasks.rollouts.versions import SyncConfig, Version, Versions, number_of

A, B = "gpu.node1.0", "gpu.node1.1"


@pytest.fixture
def versions(state: Redis) -> Versions:
    return Versions(state)


def announce(versions: Versions, number: int, config: SyncConfig | None = None, owned: bool = False) -> Version:
    return versions.announce("r", number, f"file:///w{number}", f"{number:064}", (A, B), config, owned)


def test_a_rollout_begins_with_the_model_as_it_is(versions: Versions) -> None:
    model = ModelRef("/models/tiny", copy="r")
    versions.open("r", model, SyncConfig(5, 1.5, 0.25))
    status = versions.status("r")
    assert (status.version, status.state, status.devices) == (Version("r"), "synced", {})
    assert (status.config, status.model) == (SyncConfig(5, 1.5, 0.25), model)
    assert (versions.current("r").name, number_of(""), number_of("0123456789abcdef")) == ("", 0, 0)


def test_a_rollout_begins_with_the_version_that_the_trainer_is_at(versions: Versions) -> None:
    versions.open("r", ModelRef("/models/tiny", copy="r"), number=5)
    assert (versions.current("r").number, versions.current("r").name) == (5, "")
    for number in (1, 5):
        with pytest.raises(Conflict, match="at version 5"):
            announce(versions, number)
    versions.fail("r", A, announce(versions, 6), "broken")
    versions.fail("r", B, versions.current("r"), "broken")
    assert (versions.status("r").state, versions.current("r").number) == ("rolled_back", 5)
    versions.confirm("r", A, announce(versions, 6), 0.1)
    versions.open("r", ModelRef("/models/tiny", copy="r"), number=5)
    assert versions.current("r").number == 6, "a repeat changes nothing"


def test_the_defaults_are_those_that_are_documented(versions: Versions) -> None:
    assert versions.status("r").config == SyncConfig() == SyncConfig(3, 10.0, 0.1)


def test_a_version_is_synced_when_every_device_has_confirmed(versions: Versions) -> None:
    version = announce(versions, 1)
    assert (version.number, version.uri, number_of(version.name)) == (1, "file:///w1", 1)
    assert versions.confirm("r", A, version, 0.5)
    assert versions.status("r").state == "syncing"
    assert versions.confirm("r", B, version, 0.25)
    status = versions.status("r")
    assert (status.state, status.syncs, status.rollbacks) == ("synced", 1, 0)
    assert {name: (each.state, each.number, each.latency_s) for name, each in status.devices.items()} == {
        A: ("following", 1, 0.5),
        B: ("following", 1, 0.25),
    }


def test_a_device_that_cannot_follow_leaves_and_the_others_go_on(versions: Versions) -> None:
    version = announce(versions, 1)
    versions.fail("r", A, version, "the checksum differs")
    versions.confirm("r", B, version, 0.1)
    status = versions.status("r")
    assert (status.state, status.version.number) == ("synced", 1)
    assert (status.devices[A].state, status.devices[A].reason) == ("left", "the checksum differs")
    assert versions.left("r") == {A}
    announce(versions, 2)
    assert versions.left("r") == set(), "it is asked again with the next version"


def test_a_version_that_nobody_can_take_is_rolled_back(versions: Versions) -> None:
    first = announce(versions, 1)
    for device in (A, B):
        versions.confirm("r", device, first, 0.1)
    second = announce(versions, 2)
    versions.fail("r", A, second, "no such file")
    assert versions.current("r") == second
    versions.fail("r", B, second, "no such file")
    status = versions.status("r")
    assert (status.version, status.state, status.failed_number) == (first, "rolled_back", 2)
    assert status.reason.endswith("no such file")
    assert [each.state for each in status.devices.values()] == ["following", "following"]
    assert versions.left("r") == set(), "they hold what is in force again"
    again = announce(versions, 2)
    assert again.name != second.name, "other weights under the same number are told apart"


def deadline(state: Redis, device: str) -> float:
    """The time until which a device may be silent."""
    return float(json.loads(str(state.hget(keys.rollout_devices("r"), device)))["until"])


def set_deadline(state: Redis, at: float, *devices: str) -> None:
    for device in devices:
        entry = json.loads(str(state.hget(keys.rollout_devices("r"), device)))
        state.hset(keys.rollout_devices("r"), device, json.dumps(entry | {"until": at}))


def test_silence_counts_as_failure_when_its_time_is_over(versions: Versions, state: Redis) -> None:
    version = announce(versions, 1)
    versions.confirm("r", A, version, 0.1)
    assert versions.status("r").state == "syncing", "there is time left for the other"
    set_deadline(state, 1.0, B)
    assert versions.status("r").state == "synced", "the silent one is given up"
    assert versions.left("r") == {B}
    announce(versions, 2)
    set_deadline(state, 1.0, A, B)
    assert versions.status("r").state == "rolled_back", "nobody answers"
    assert versions.current("r") == version


def test_a_device_that_is_heard_of_has_more_time(versions: Versions, state: Redis) -> None:
    version = announce(versions, 1, SyncConfig(max_sync_retries=1, sync_timeout=60.0))
    set_deadline(state, float(state.time()[0]) + 30, A, B)
    assert versions.hear("r", A, version)
    assert deadline(state, A) > deadline(state, B)
    set_deadline(state, 1.0, B)
    assert versions.status("r").state == "syncing"
    assert versions.left("r") == {B}, "the silent one is given up"
    versions.confirm("r", A, version, 3.0)
    assert versions.status("r").state == "synced"


def test_a_device_that_comes_late_joins_at_the_current_version(versions: Versions) -> None:
    version = announce(versions, 1)
    for device in (A, B):
        versions.confirm("r", device, version, 0.1)
    late = versions.current("r")
    assert late == version
    assert versions.confirm("r", "gpu.node2.0", late, 0.7)
    assert versions.status("r").devices["gpu.node2.0"].state == "following"
    assert versions.status("r").syncs == 1


def test_one_that_was_given_up_is_back_when_it_confirms(versions: Versions) -> None:
    version = announce(versions, 1)
    versions.confirm("r", A, version, 0.1)
    versions.fail("r", B, version, "slow")
    versions.confirm("r", B, version, 9.0)
    assert versions.left("r") == set()


def test_word_of_a_version_that_is_over_counts_for_nothing(versions: Versions) -> None:
    first = announce(versions, 1)
    announce(versions, 2)
    assert not versions.confirm("r", A, first, 0.1)
    assert not versions.fail("r", B, first, "late")
    assert not versions.hear("r", B, first)
    assert {each.state for each in versions.status("r").devices.values()} == {"awaited"}


def test_a_roll_back_goes_to_what_somebody_has_though_not_all_had_it(versions: Versions) -> None:
    """A trainer that is faster than its devices announces the next version while the last one is on its way."""
    first = announce(versions, 1, owned=True)
    versions.confirm("r", A, first, 0.1)
    failing = announce(versions, 2, owned=True)
    for device in (A, B):
        versions.fail("r", device, failing, "broken")
    assert versions.current("r") == first
    assert versions.sweep("r") == ["file:///w2"]
    assert versions.status("r").devices[A].state == "following"


def test_versions_only_grow_and_saying_it_twice_is_saying_it_once(versions: Versions) -> None:
    version = announce(versions, 4)
    assert announce(versions, 4) == version
    for number in (3, 4):
        with pytest.raises(Conflict, match="the rollout is at version 4"):
            versions.announce("r", number, "file:///other", "", (A,))


def test_files_of_ours_go_when_no_version_needs_them(versions: Versions) -> None:
    def sync(number: int) -> None:
        version = announce(versions, number, owned=True)
        for device in (A, B):
            versions.confirm("r", device, version, 0.1)

    sync(1)
    announce(versions, 2, owned=True)
    assert versions.sweep("r") == [], "version 1 would be in force again"
    sync(3)
    assert sorted(versions.sweep("r")) == ["file:///w1", "file:///w2"]
    assert versions.sweep("r") == []
    failing = announce(versions, 4, owned=True)
    for device in (A, B):
        versions.fail("r", device, failing, "broken")
    assert versions.sweep("r") == ["file:///w4"]
    versions.announce("r", 5, "file:///theirs", "", (A,))
    versions.announce("r", 6, "file:///theirs-too", "", (A,))
    assert versions.sweep("r") == [], "what is not ours stays"


def test_all_of_it_goes_with_the_rollout(versions: Versions, state: Redis) -> None:
    versions.fail("r", A, announce(versions, 1), "broken")
    assert 0 < state.ttl(keys.rollout_left("r")) <= 60, "then it may try again"
    assert all(state.ttl(key) > 0 for key in state.keys("assay:rollout:*"))
    versions.forget("r")
    assert state.keys("assay:rollout:*") == []
