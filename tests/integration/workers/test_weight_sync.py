"""Synchronization of a device with a rollout's weight versions, with the real engine, a real Redis and real files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest
from redis import Redis

from config import keys
from tasks.errors import CannotFollow, ModelMissing
from tasks.inference.engine import Generated, GenerateRequest, Interrupt, ModelRef, Sampling
from tasks.rollouts.weight_follower import WeightFollower
from tasks.rollouts.weight_versions import SyncConfig, Version, Versions, number_of
from tests.support import tiny_models
from tests.support.fleet import Fleet
from tests.support.programs import PATIENCE_S, wait_until
from workers.engines.engine import EngineOptions, TransformersEngine
from workers.engines.weight_updates import ReadWeights

pytestmark = pytest.mark.usefixtures("one_thread")

HERE, OTHER = "gpu.node1.0", "gpu.node1.1"
QUICK = SyncConfig(max_sync_retries=3, sync_timeout=PATIENCE_S, sync_retry_delay=0.01)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("versions")
    return [tiny_models.write(folder / f"v{seed}", seed=seed) for seed in range(3)]


@pytest.fixture
def versions(state: Redis, folders: list[Path]) -> Versions:
    versions = Versions(state)
    versions.open("r", model_of(folders), QUICK)
    return versions


class Engine(TransformersEngine):
    """The real engine, which counts its reads, and whose first reads may fail."""

    def __init__(self) -> None:
        super().__init__(EngineOptions({}, on_cpu=True))
        self.reads = 0
        self.unreadable = 0

    def read(self, uri: str, sha256: str = "") -> ReadWeights:
        self.reads += 1
        if self.unreadable >= self.reads:
            return super().read(uri + ".not-yet", sha256)
        return super().read(uri, sha256)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def model_of(folders: list[Path]) -> ModelRef:
    return ModelRef(str(folders[0]), copy="r")


def announce(versions: Versions, folders: list[Path], number: int, devices: Sequence[str] = (HERE,)) -> Version:
    file = folders[number] / "model.safetensors"
    return versions.announce("r", number, file.as_uri(), hashlib.sha256(file.read_bytes()).hexdigest(), devices)


def follower(
    versions: Versions, engine: Engine, folders: list[Path], interrupt: Interrupt = "continue", device: str = HERE
) -> WeightFollower:
    return WeightFollower(versions, "r", device, engine, model_of(folders), interrupt)


def test_a_device_loads_the_version_and_confirms_with_its_latency(
    versions: Versions, engine: Engine, folders: list[Path]
) -> None:
    here = follower(versions, engine, folders)
    here.renew()
    assert versions.status("r").devices[HERE].number == 0
    announce(versions, folders, 1)
    here.renew()
    status = versions.status("r")
    assert (status.state, status.devices[HERE].state, status.devices[HERE].number) == ("synced", "following", 1)
    assert status.devices[HERE].latency_s > 0
    assert number_of(engine.version(model_of(folders))) == 1


def test_a_late_device_joins_at_the_current_version(versions: Versions, engine: Engine, folders: list[Path]) -> None:
    announce(versions, folders, 1)
    follower(versions, engine, folders).renew()
    announce(versions, folders, 2)
    follower(versions, engine, folders).renew()
    late = Engine()
    follower(versions, late, folders, device="gpu.node9.0").renew()
    assert number_of(late.version(model_of(folders))) == 2
    assert late.reads == 1, "superseded versions are not read"
    assert versions.status("r").devices["gpu.node9.0"].number == 2


@pytest.mark.parametrize("interrupt", ["continue", "restart", "finish"])
def test_a_running_generation_loads_new_weights(
    versions: Versions, engine: Engine, folders: list[Path], interrupt: Interrupt
) -> None:
    here = follower(versions, engine, folders, interrupt)
    here.renew()
    given: list[int] = []
    last = [3]

    def more(room: int) -> list[GenerateRequest]:
        if not given:
            announce(versions, folders, 1)
        if given and versions.status("r").state == "synced":
            room = min(room, last[0])  # a few more requests, with the new weights
            last[0] -= room
        given.extend([1] * room)
        lengths = [20 + 7 * at % 23 for at in range(room)]  # some answers end while others continue
        return [GenerateRequest(f"prompt {len(given)}", Sampling(max_new_tokens=each)) for each in lengths]

    found = engine.generate(model_of(folders), [], more=more, renewal=here)
    answers = [answer for answer in found if isinstance(answer, Generated)]
    numbers = {tuple(number_of(span.version) for span in answer.spans) for answer in answers}
    assert (1,) in numbers
    assert numbers <= {"continue": {(0,), (0, 1), (1,)}, "restart": {(0,), (1,)}, "finish": {(0,), (1,)}}[interrupt]
    assert engine.reads == 1
    assert versions.status("r").devices[HERE].number == 1


def test_a_failing_sync_is_retried_and_then_rolled_back(
    versions: Versions, engine: Engine, folders: list[Path]
) -> None:
    here = follower(versions, engine, folders)
    announce(versions, folders, 1)
    engine.unreadable = 2
    here.renew()
    assert engine.reads == 3
    assert versions.status("r").state == "synced"
    before = engine.version(model_of(folders))
    versions.announce("r", 2, (folders[2] / "model.safetensors").as_uri(), "0" * 64, (HERE,))
    here.renew()
    status = versions.status("r")
    assert (status.state, status.version.number, status.failed_number) == ("rolled_back", 1, 2)
    assert "the checksum" in status.reason
    assert engine.reads == 6, "each version is tried three times"
    assert engine.version(model_of(folders)) == before, "the device keeps the version that is current again"


def test_a_device_that_cannot_load_a_version_leaves_instead_of_serving_old_weights(
    versions: Versions, engine: Engine, folders: list[Path]
) -> None:
    version = announce(versions, folders, 1, (HERE, OTHER))
    versions.confirm("r", OTHER, version, 0.1)
    engine.unreadable = 10
    here = follower(versions, engine, folders)
    with pytest.raises(CannotFollow, match=r"gpu\.node1\.0 could not take version 1: no such weights"):
        here.renew()
    assert versions.left("r") == {HERE}
    assert (versions.status("r").state, versions.status("r").version.number) == ("synced", 1)
    engine.unreadable = 0
    here.renew()
    assert versions.left("r") == set(), "the device may rejoin"


def test_a_rolled_back_version_is_not_kept(versions: Versions, engine: Engine, folders: list[Path]) -> None:
    """A slow device whose version was rolled back meanwhile returns to the previous version too."""
    here = follower(versions, engine, folders)
    here.renew()
    base = engine.version(model_of(folders))
    version = announce(versions, folders, 1)
    engine.swap(model_of(folders), engine.read(version.uri), version.name)
    versions.fail("r", HERE, version, "given up")
    assert versions.current("r").number == 0
    with pytest.raises(CannotFollow, match="reloads the original model"):
        here.renew()  # without the error a run would continue with the weights it holds
    here.renew()
    assert engine.version(model_of(folders)) == base


def test_a_hanging_read_times_out(
    state: Redis, engine: Engine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = Versions(state)
    versions.open("r", model_of(folders), SyncConfig(max_sync_retries=2, sync_timeout=2.0, sync_retry_delay=0.0))
    over = Event()
    monkeypatch.setattr(engine, "read", lambda *_: over.wait(PATIENCE_S))
    announce(versions, folders, 1)
    try:
        follower(versions, engine, folders).renew()
    finally:
        over.set()
    status = versions.status("r")
    assert (status.state, status.version.number) == ("rolled_back", 0)
    assert "was not read within 2 s" in status.reason


def test_a_device_without_the_model_raises_an_error_and_leaves(
    versions: Versions, engine: Engine, folders: list[Path]
) -> None:
    version = announce(versions, folders, 1, (HERE, OTHER))
    versions.confirm("r", OTHER, version, 0.1)
    with pytest.raises(ModelMissing):
        WeightFollower(versions, "r", HERE, engine, ModelRef("/nowhere", copy="r")).renew()
    assert versions.left("r") == {HERE}


def test_a_device_that_left_gets_no_chunks_of_the_rollout(fleet: Fleet, state: Redis) -> None:
    here, other = fleet.hire(index=0), fleet.hire(index=1)
    items = [{"id": str(at), "cost_s": 0.5} for at in range(8)]
    barred = fleet.submit(*items)
    state.hset(keys.job(barred), "kind", "rollout")  # the scripts call the hooks of the job's kind
    state.sadd(keys.rollout_left(barred), here.queue)
    fleet.core.ledger.unqueue(here.queue, "paused")  # chunks dispatched to it before move to other queues
    fleet.core.ledger.unqueue(here.queue, "")
    fleet.core.dispatcher.forget_fleet()
    fleet.core.dispatcher.fill("device")
    assert here.take() == []
    assert {chunk.job_id for chunk in other.take()} == {barred}
    open_to_all = fleet.submit(*items)
    wait_until(lambda: {chunk.job_id for chunk in here.take("again")} == {open_to_all}, "it works for others")
