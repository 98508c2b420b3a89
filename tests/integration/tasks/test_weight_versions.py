"""Versions of a rollout's weights: announced by the trainer, confirmed by devices, and rolled back after failures."""

import json

import pytest
from redis import Redis

from config import keys
from tasks.errors import Conflict
from tasks.inference.engine import ModelRef
from tasks.rollouts.weight_versions import SyncConfig, Version, Versions, number_of

A, B = "gpu.node1.0", "gpu.node1.1"


@pytest.fixture
def versions(state: Redis) -> Versions:
    return Versions(state)


def announce(versions: Versions, number: int, config: SyncConfig | None = None, owned: bool = False) -> Version:
    return versions.announce("r", number, f"file:///w{number}", f"{number:064}", (A, B), config, owned)


def test_a_rollout_begins_with_the_models_own_weights(versions: Versions) -> None:
    model = ModelRef("/models/tiny", copy="r")
    versions.open("r", model, SyncConfig(5, 1.5, 0.25))
    status = versions.status("r")
    assert (status.version, status.state, status.devices) == (Version("r"), "synced", {})
    assert (status.config, status.model) == (SyncConfig(5, 1.5, 0.25), model)
    assert (versions.current("r").name, number_of(""), number_of("0123456789abcdef")) == ("", 0, 0)


def test_a_rollout_can_begin_with_the_trainers_current_version(versions: Versions) -> None:
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
    assert versions.current("r").number == 6, "a repeated call changes nothing"


def test_the_defaults_match_the_documentation(versions: Versions) -> None:
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


def test_a_device_that_fails_a_version_leaves_and_other_devices_continue(versions: Versions) -> None:
    version = announce(versions, 1)
    versions.fail("r", A, version, "the checksum differs")
    versions.confirm("r", B, version, 0.1)
    status = versions.status("r")
    assert (status.state, status.version.number) == ("synced", 1)
    assert (status.devices[A].state, status.devices[A].reason) == ("left", "the checksum differs")
    assert versions.left("r") == {A}
    announce(versions, 2)
    assert versions.left("r") == set(), "the device may take the next version"


def test_a_version_that_no_device_can_load_is_rolled_back(versions: Versions) -> None:
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
    assert versions.left("r") == set(), "both devices still hold the version that is current again"
    again = announce(versions, 2)
    assert again.name != second.name, "different weights under the same number get different names"


def deadline(state: Redis, device: str) -> float:
    """Return the time at which a silent device counts as failed."""
    return float(json.loads(str(state.hget(keys.rollout_devices("r"), device)))["until"])


def set_deadline(state: Redis, at: float, *devices: str) -> None:
    for device in devices:
        entry = json.loads(str(state.hget(keys.rollout_devices("r"), device)))
        state.hset(keys.rollout_devices("r"), device, json.dumps(entry | {"until": at}))


def test_a_device_that_is_silent_until_its_deadline_counts_as_failed(versions: Versions, state: Redis) -> None:
    version = announce(versions, 1)
    versions.confirm("r", A, version, 0.1)
    assert versions.status("r").state == "syncing", "the deadline of the second device has not passed"
    set_deadline(state, 1.0, B)
    assert versions.status("r").state == "synced", "the silent device counts as failed"
    assert versions.left("r") == {B}
    announce(versions, 2)
    set_deadline(state, 1.0, A, B)
    assert versions.status("r").state == "rolled_back", "no device answered in time"
    assert versions.current("r") == version


def test_a_sign_of_life_extends_a_devices_deadline(versions: Versions, state: Redis) -> None:
    version = announce(versions, 1, SyncConfig(max_sync_retries=1, sync_timeout=60.0))
    set_deadline(state, float(state.time()[0]) + 30, A, B)
    assert versions.report_loading("r", A, version)
    assert deadline(state, A) > deadline(state, B)
    set_deadline(state, 1.0, B)
    assert versions.status("r").state == "syncing"
    assert versions.left("r") == {B}, "the silent device counts as failed"
    versions.confirm("r", A, version, 3.0)
    assert versions.status("r").state == "synced"


def test_a_late_device_joins_at_the_current_version(versions: Versions) -> None:
    version = announce(versions, 1)
    for device in (A, B):
        versions.confirm("r", device, version, 0.1)
    late = versions.current("r")
    assert late == version
    assert versions.confirm("r", "gpu.node2.0", late, 0.7)
    assert versions.status("r").devices["gpu.node2.0"].state == "following"
    assert versions.status("r").syncs == 1


def test_a_failed_device_rejoins_when_it_confirms(versions: Versions) -> None:
    version = announce(versions, 1)
    versions.confirm("r", A, version, 0.1)
    versions.fail("r", B, version, "slow")
    versions.confirm("r", B, version, 9.0)
    assert versions.left("r") == set()


def test_reports_about_a_superseded_version_are_ignored(versions: Versions) -> None:
    first = announce(versions, 1)
    announce(versions, 2)
    assert not versions.confirm("r", A, first, 0.1)
    assert not versions.fail("r", B, first, "late")
    assert not versions.report_loading("r", B, first)
    assert {each.state for each in versions.status("r").devices.values()} == {"awaited"}


def test_a_rollback_goes_to_a_version_that_at_least_one_device_holds(versions: Versions) -> None:
    """A trainer that is faster than its devices announces the next version while they load the previous one."""
    first = announce(versions, 1, owned=True)
    versions.confirm("r", A, first, 0.1)
    failing = announce(versions, 2, owned=True)
    for device in (A, B):
        versions.fail("r", device, failing, "broken")
    assert versions.current("r") == first
    assert versions.sweep("r") == ["file:///w2"]
    assert versions.status("r").devices[A].state == "following"


def test_version_numbers_only_grow_and_an_announcement_is_idempotent(versions: Versions) -> None:
    version = announce(versions, 4)
    assert announce(versions, 4) == version
    for number in (3, 4):
        with pytest.raises(Conflict, match="the rollout is at version 4"):
            versions.announce("r", number, "file:///other", "", (A,))


def test_uploaded_weight_files_are_deleted_when_no_version_needs_them(versions: Versions) -> None:
    def sync(number: int) -> None:
        version = announce(versions, number, owned=True)
        for device in (A, B):
            versions.confirm("r", device, version, 0.1)

    sync(1)
    announce(versions, 2, owned=True)
    assert versions.sweep("r") == [], "a rollback of version 2 would need version 1"
    sync(3)
    assert sorted(versions.sweep("r")) == ["file:///w1", "file:///w2"]
    assert versions.sweep("r") == []
    failing = announce(versions, 4, owned=True)
    for device in (A, B):
        versions.fail("r", device, failing, "broken")
    assert versions.sweep("r") == ["file:///w4"]
    versions.announce("r", 5, "file:///theirs", "", (A,))
    versions.announce("r", 6, "file:///theirs-too", "", (A,))
    assert versions.sweep("r") == [], "files of the trainer are never deleted"


def test_records_of_versions_expire(versions: Versions, state: Redis) -> None:
    versions.fail("r", A, announce(versions, 1), "broken")
    assert 0 < state.ttl(keys.rollout_left("r")) <= 60, "after its TTL the device may try again"
    assert all(state.ttl(key) > 0 for key in state.keys("assay:rollout:*"))
