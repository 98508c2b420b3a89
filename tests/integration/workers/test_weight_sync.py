"""A device that follows a rollout's versions: real engine, real Redis, real files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest
from redis import Redis

from config import keys
from tasks.errors import CannotFollow, ModelMissing
from tasks.inference.engine import Generated, GenerateRequest, Interrupt, ModelRef, Sampling
from tasks.rollouts.versions import SyncConfig, Version, Versions, number_of
from tasks.rollouts.weight_sync import WeightFollower
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
    """The real one, which counts what it reads and may find files unreadable at first."""

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


def test_a_device_takes_the_version_and_confirms_with_its_latency(
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


def test_one_that_starts_late_joins_at_the_current_version(
    versions: Versions, engine: Engine, folders: list[Path]
) -> None:
    announce(versions, folders, 1)
    follower(versions, engine, folders).renew()
    announce(versions, folders, 2)
    follower(versions, engine, folders).renew()
    late = Engine()
    follower(versions, late, folders, device="gpu.node9.0").renew()
    assert number_of(late.version(model_of(folders))) == 2
    assert late.reads == 1, "versions that are over are not read"
    assert versions.status("r").devices["gpu.node9.0"].number == 2


@pytest.mark.parametrize("interrupt", ["continue", "restart", "finish"])
def test_a_running_generation_follows_without_being_asked(
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
            room = min(room, last.pop()) if last else 0  # a few more, with the new weights
        given.extend([1] * room)
        lengths = [20 + 7 * at % 23 for at in range(room)]  # some end while others go on
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
    assert engine.reads == 6, "three tries"
    assert engine.version(model_of(folders)) == before, "it goes on with what is in force again"


def test_a_device_that_cannot_follow_leaves_rather_than_serve_old_weights(
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
    assert versions.left("r") == set(), "it may come back"


def test_weights_that_were_taken_back_are_not_kept(versions: Versions, engine: Engine, folders: list[Path]) -> None:
    """A device so slow that its version was taken back meanwhile goes back too."""
    here = follower(versions, engine, folders)
    here.renew()
    base = engine.version(model_of(folders))
    version = announce(versions, folders, 1)
    engine.swap(model_of(folders), engine.read(version.uri), version.name)
    versions.fail("r", HERE, version, "given up")
    assert versions.current("r").number == 0
    with pytest.raises(CannotFollow, match="goes back to the model as it was"):
        here.renew()  # a run would go on with what it holds
    here.renew()
    assert engine.version(model_of(folders)) == base


def test_a_reading_that_hangs_is_given_up_after_its_time(
    state: Redis, engine: Engine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = Versions(state)
    versions.open("r", model_of(folders), SyncConfig(max_sync_retries=2, sync_timeout=1.0, sync_retry_delay=0.0))
    over = Event()
    monkeypatch.setattr(engine, "read", lambda *_: over.wait(PATIENCE_S))
    announce(versions, folders, 1)
    try:
        follower(versions, engine, folders).renew()
    finally:
        over.set()
    status = versions.status("r")
    assert (status.state, status.version.number) == ("rolled_back", 0)
    assert "was not read within 1 s" in status.reason


def test_a_device_without_the_model_says_so_and_leaves(versions: Versions, engine: Engine, folders: list[Path]) -> None:
    version = announce(versions, folders, 1, (HERE, OTHER))
    versions.confirm("r", OTHER, version, 0.1)
    with pytest.raises(ModelMissing):
        WeightFollower(versions, "r", HERE, engine, ModelRef("/nowhere", copy="r")).renew()
    assert versions.left("r") == {HERE}


def test_a_device_that_left_gets_no_work_of_that_rollout(fleet: Fleet, state: Redis) -> None:
    here, other = fleet.hire(index=0), fleet.hire(index=1)
    items = [{"id": str(at), "cost_s": 0.5} for at in range(8)]
    barred = fleet.submit(*items)
    state.hset(keys.job(barred), "kind", "rollout")  # the scripts ask the hooks of the job's kind
    state.sadd(keys.rollout_left(barred), here.queue)
    fleet.core.ledger.unqueue(here.queue, "paused")  # what it was given before goes to others
    fleet.core.ledger.unqueue(here.queue, "")
    fleet.core.dispatcher.forget_fleet()
    fleet.core.dispatcher.fill("device")
    assert here.take() == []
    assert {chunk.job_id for chunk in other.take()} == {barred}
    open_to_all = fleet.submit(*items)
    wait_until(lambda: {chunk.job_id for chunk in here.take("again")} == {open_to_all}, "it works for others")
