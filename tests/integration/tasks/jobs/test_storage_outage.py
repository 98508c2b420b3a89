"""While the storage is away, full or hung, the jobs that need it wait, other jobs run on the same workers, and no item
fails or is counted twice."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from config import keys
from config.settings import Settings
from tasks.connections import redact
from tasks.errors import StorageUnavailable, StoredFileMissing
from tasks.jobs.dispatch import recovery
from tasks.jobs.model import Job, JobHead
from tasks.jobs.state.storage import Storage
from tasks.jobs.state.storage_faults import FAULT_S, StorageStatus
from tasks.redis_clock import read_time
from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet, Hand
from tests.support.programs import wait_until
from tests.support.storage_outage import full, not_mounted, replaced_by_a_file, small_disk

NUMBER = 300
GROUPED = {"stages": [{"name": "rule", "pool": "cpu"}, {"name": "group", "pool": "cpu", "grouped": True}]}
CPU = {"stages": [{"name": "run", "pool": "cpu"}]}

Outage = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "storage"


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """Jobs of more than 50 items are stored."""
    update = {"stored_items": 50, "storage_shared": True, "storage_timeout_s": 0.5}
    fleet = Fleet(settings.model_copy(update=update), tmp_path / "journal")
    yield fleet
    fleet.close()


@pytest.fixture(params=["a file in its place", "full"])
def outage(request: pytest.FixtureRequest, folder: Path) -> Iterator[Outage]:
    """Return a function that makes the storage unwritable for the time of a block."""
    if request.param == "full":
        with small_disk(folder):
            yield lambda: full(folder)
    else:
        yield lambda: replaced_by_a_file(folder)


def submit(fleet: Fleet, number: int = NUMBER, **options: Any) -> str:
    lines = (json.dumps({"id": f"item-{x}", "x": x}).encode() for x in range(number))
    return fleet.core.submitter.submit_lines(JobHead(kind="simulated", **{"spec": CPU} | options), lines)


def notes(fleet: Fleet) -> list[str]:
    return StorageStatus(fleet.core.state, redact(fleet.settings.storage_url)).notes()


def finish(fleet: Fleet, job: str, *hands: Hand) -> Job:
    """Let the workers and recovery take turns until the job has ended."""

    def has_ended() -> bool:
        fleet.tick()
        return not fleet.finish_step(job, *hands)

    wait_until(has_ended, "the job ends")
    return fleet.job(job)


def others_run(fleet: Fleet, cpu: Hand) -> None:
    """Assert that a job which needs no storage runs now."""
    job = fleet.submit({"x": "small"}, spec=CPU)
    cpu.work()
    assert fleet.job(job).state == "done"


def computed(fleet: Fleet) -> int:
    """Return the number of computed items, without those of other jobs."""
    return sum(line != '"small"' for line in fleet.computed())


def is_complete(fleet: Fleet, job: str, number: int = NUMBER) -> bool:
    """Assert that each item has a single outcome, in order, and that it is good."""
    ended = fleet.job(job)
    assert (ended.state, ended.ok, ended.failed, ended.total) == ("done", number, 0, number)
    rows = fleet.rows(job)
    assert [row["index"] for row in rows] == list(range(number))
    assert {(row["status"], row["attempts"]) for row in rows} == {("ok", 1)}, "an outage is no attempt"
    return True


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_parts_that_cannot_be_written_wait_while_other_jobs_run(fleet: Fleet, folder: Path, outage: Outage) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = submit(fleet, spec={})
    wait_until(lambda: device.work() or fleet.job(job).state == "finishing", "every item is computed")
    with outage():
        cpu.work()
        assert fleet.job(job).state == "finishing"
        assert fleet.core.state.smembers(keys.holders()) == set(), "no worker holds a part"
        (note,) = notes(fleet)
        assert note.startswith(f"storage file://{folder} cannot be written by ")
        assert note.endswith("; 1 part of 1 job waits")
        others_run(fleet, cpu)
        fleet.tick()
        others_run(fleet, cpu)
    finish(fleet, job, cpu)
    assert is_complete(fleet, job)
    assert computed(fleet) == NUMBER
    assert notes(fleet) == []
    assert fleet.core.state.keys(keys.job_outcomes(job, "*")) == []
    assert len(files(folder)) == 2, "the items and a part: no file of an attempt that failed is left"


@pytest.mark.parametrize("kind", [replaced_by_a_file, not_mounted])
def test_items_that_cannot_be_read_wait_while_other_jobs_run(
    fleet: Fleet, folder: Path, kind: Callable[[Path], AbstractContextManager[None]]
) -> None:
    cpu = fleet.hire("cpu")
    job = submit(fleet)
    with kind(folder):
        for _ in range(3):
            cpu.work()
            fleet.tick()
        others_run(fleet, cpu)
        assert (fleet.job(job).ok, fleet.job(job).failed) == (0, 0)
        (note,) = notes(fleet)
        assert "cannot be read" in note
        assert note.endswith(f"; {NUMBER} items of 1 job wait")
        assert fleet.core.state.smembers(keys.job_chunks(job)) == set(), "no chunk of it occupies a queue"
    finish(fleet, job, cpu)
    assert is_complete(fleet, job)
    assert computed(fleet) == NUMBER


def test_a_stored_job_does_not_stop_a_small_job_in_the_same_batch(fleet: Fleet, folder: Path) -> None:
    cpu = fleet.hire("cpu")
    job = submit(fleet, 60)
    with replaced_by_a_file(folder):
        small = fleet.submit({"x": "small"}, spec=CPU)
        fleet.core.dispatcher.fill("cpu")
        cpu.work()
        assert fleet.job(small).state == "done"
    finish(fleet, job, cpu)
    assert is_complete(fleet, job, 60)


@pytest.mark.parametrize("cacheable", [False, True])
def test_items_with_long_values_run_again_when_the_storage_is_back(
    fleet: Fleet, outage: Outage, cacheable: bool
) -> None:
    """The items of this job are in Redis, only their values need the storage."""
    cpu = fleet.hire("cpu")
    spec = CPU | {"result_bytes": 100_000, "cacheable": cacheable}
    fleet.finish(fleet.submit({"x": "first"}, spec=spec), cpu)  # makes the folder
    before = computed(fleet)
    with outage():
        job = fleet.submit(*[{"x": x} for x in range(3)], spec=spec)
        cpu.work()
        others_run(fleet, cpu)
        for _ in range(2):
            wait_until(lambda: fleet.tick() or not fleet.core.state.zcard(keys.parked()), "the rest of the stage ends")
            cpu.work()
        assert (fleet.job(job).ok, fleet.job(job).failed) == (0, 0)
        assert computed(fleet) - before == 3, "nothing is computed again before the storage is back"
        (note,) = notes(fleet)
        assert "cannot be written" in note
        assert note.endswith("; 3 items of 1 job wait")
    finish(fleet, job, cpu)
    assert is_complete(fleet, job, 3)
    assert {len(row["value"]["pad"]) for row in fleet.rows(job)} == {100_000}
    assert computed(fleet) - before == (3 if cacheable else 6), "the cache has the results"
    assert notes(fleet) == []


def test_short_values_of_a_job_count_while_its_long_values_wait(fleet: Fleet, folder: Path) -> None:
    cpu = fleet.hire("cpu")
    folder.mkdir()
    with replaced_by_a_file(folder):
        job = fleet.submit({"x": "short"}, {"x": "l" * 100_000}, spec=CPU)
        cpu.work()
        assert [row["index"] for row in fleet.rows(job)] == [0]
    finish(fleet, job, cpu)
    assert is_complete(fleet, job, 2)


def test_a_group_with_a_long_value_is_not_divided(fleet: Fleet, folder: Path) -> None:
    cpu = fleet.hire("cpu")
    with small_disk(folder):
        body = [{"x": "l" * 70_000 if x % 20 == 7 else x, "group_id": f"g{x // 20}"} for x in range(60)]
        lines = (json.dumps(item).encode() for item in body)
        job = fleet.core.submitter.submit_lines(JobHead(kind="simulated", spec=GROUPED), lines)
        pending = keys.job_pending(job, "group")
        chunks = keys.job_chunks(job)
        with pytest.MonkeyPatch.context() as patch:  # stop before the second stage
            patch.setattr(cpu.runner, "_fill", lambda *_: 0)
            wait_until(lambda: _run_once(fleet, cpu) or fleet.core.state.llen(pending) == 3, "the groups are pending")
        assert fleet.core.state.smembers(chunks) == set()
        with full(folder):
            cpu.work()
            assert fleet.job(job).ok == 0
            others_run(fleet, cpu)
        finish(fleet, job, cpu)
        assert is_complete(fleet, job, 60)
        assert {row["parts"]["members"] for row in fleet.rows(job)} == {20.0}


def _run_once(fleet: Fleet, cpu: Hand) -> None:
    if not fleet.core.state.exists(keys.dispatched("cpu")):
        fleet.core.dispatcher.forget_fleet()
        fleet.core.dispatcher.fill("cpu")
    cpu.runner.run("")


def test_values_of_an_engine_with_continuous_batching_wait_too(fleet: Fleet, folder: Path) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    folder.mkdir()
    with replaced_by_a_file(folder):
        job = fleet.submit(*[{"x": x} for x in range(3)], spec={"streams": True, "result_bytes": 100_000})
        device.work()
        assert (fleet.job(job).ok, fleet.job(job).failed) == (0, 0)
        small = fleet.submit({"x": "small"}, spec={"streams": True})
        device.work()
        assert fleet.job(small).state == "done"
    finish(fleet, job, device, cpu)
    assert is_complete(fleet, job, 3)


@contextmanager
def hung(file: Path) -> Iterator[None]:
    """Let every open of the file hang, as on a network mount whose server is gone."""
    aside = file.with_suffix(".aside")
    file.rename(aside)
    os.mkfifo(file)
    try:
        yield
    finally:
        pipe = file.with_suffix(".pipe")
        file.rename(pipe)
        aside.rename(file)
        os.close(os.open(pipe, os.O_RDWR))  # the hung open returns
        pipe.unlink()


def test_a_storage_that_hangs_holds_a_worker_for_a_single_timeout(fleet: Fleet, folder: Path) -> None:
    cpu = fleet.hire("cpu")
    job, other = submit(fleet), submit(fleet, 60)
    (items,) = folder.rglob(f"{fleet.job(job).layout.folder}/items.jsonl")
    with hung(items):
        wait_until(lambda: cpu.work() or notes(fleet), "the timeout")
        others_run(fleet, cpu)
        assert fleet.job(job).ok == 0
        assert "no answer within 0.5 s" in notes(fleet)[0] or "an earlier call still hangs" in notes(fleet)[0]
    for each, number in ((job, NUMBER), (other, 60)):
        finish(fleet, each, cpu)
        assert is_complete(fleet, each, number)


def test_a_job_that_waits_for_the_storage_ends_at_its_deadline(fleet: Fleet, folder: Path) -> None:
    cpu = fleet.hire("cpu")
    job = submit(fleet, deadline_s=1, on_error={"fill": 0.0})
    with replaced_by_a_file(folder):
        cpu.work()
        fleet.core.state.zadd(keys.deadlines(), {job: 1})
        fleet.tick()
        assert (fleet.job(job).state, fleet.job(job).reason) in {("done", "deadline"), ("failed", "deadline")}
    assert {row["status"] for row in fleet.rows(job)} == {"timed_out"}


def test_a_cancelled_job_does_not_wait_for_the_storage(fleet: Fleet, folder: Path) -> None:
    cpu = fleet.hire("cpu")
    job = submit(fleet)
    with replaced_by_a_file(folder):
        cpu.work()
        assert fleet.core.cancel(job) == "cancelled"
        assert notes(fleet)[0].endswith("; no job waits for it")
        fleet.tick()
        cpu.work()
    assert {row["status"] for row in fleet.rows(job)} == {"cancelled"}


def test_a_deleted_items_file_still_fails_its_items(fleet: Fleet, folder: Path) -> None:
    """The storage is there, only the file is not: waiting would not bring it back."""
    cpu = fleet.hire("cpu")
    job = submit(fleet)
    (items,) = folder.rglob("items.jsonl")
    items.unlink()
    assert finish(fleet, job, cpu).reasons == {"payload_lost": NUMBER}
    assert notes(fleet) == []


def test_parking_is_for_the_holder_of_the_lease_and_returns_untaken_chunks(fleet: Fleet) -> None:
    cpu = fleet.hire("cpu")
    job = submit(fleet, spec=CPU | {"batch_items": 20, "cost_s": 0.1})
    chunk, *_ = cpu.take()
    assert fleet.core.state.scard(keys.job_chunks(job)) > 1, "further chunks wait on the queue"
    ledger = fleet.core.ledger
    assert ledger.park(job, chunk.stage, 60, [replace(chunk, lease_id="other")]) == 0
    assert fleet.core.state.smembers(keys.job_chunks(job)) == {chunk.id}, "only the running chunk is left"
    assert ledger.park(job, chunk.stage, 60, [chunk]) == len(chunk.items)
    assert ledger.park(job, chunk.stage, 60, [chunk]) == 0, "it is idempotent"
    assert int(fleet.core.state.hget(keys.job(job), f"pending:{chunk.stage}") or 0) == NUMBER
    fleet.core.dispatcher.fill("cpu")
    assert fleet.core.state.smembers(keys.job_chunks(job)) == set(), "the stage rests"


def test_a_storage_that_hangs_does_not_stop_recovery(
    fleet: Fleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "DELETION_S", 0.05)
    fleet.core.state.zadd(keys.staging(), {"old~1": 1})
    gate = folder / "gate"
    folder.mkdir()
    os.mkfifo(gate)

    def blocked(*_: object, **__: object) -> None:
        gate.open("rb").close()

    monkeypatch.setattr(fleet.core.storage._filesystem[0].__class__, "rm", blocked)
    fleet.tick()
    job = fleet.submit({"x": 1})
    fleet.tick()
    assert fleet.finish(job, fleet.hire()).ok == 1
    gate.open("wb").close()


# --- what clients and operators see ---


@pytest.fixture
def full_house(fleet: Fleet) -> Fleet:
    fleet.hire()
    fleet.hire("cpu")
    fleet.hire("api")
    return fleet


def test_a_large_job_is_refused_with_503_while_the_storage_is_away(
    full_house: Fleet, folder: Path, outage: Outage
) -> None:
    api = Api(full_house)
    items = [{"x": "x" * 200, "id": str(x)} for x in range(2000)]
    kept = submit(full_house, 60)
    before = files(folder)
    with outage():
        reply = api.submit(*items)
        assert is_problem(reply, 503)
        assert reply.headers["Retry-After"]
        assert "cannot be written: " in reply.json["detail"]
        assert "Free space on it" in reply.json["detail"]
        assert api.submit({"x": 1}).status_code == 202, "small jobs need no storage"
    assert files(folder) == before
    assert api.submit(*items).status_code == 202
    assert full_house.job(kept).is_active


def test_ready_and_the_overview_name_the_storage_and_stay_ready(full_house: Fleet, folder: Path) -> None:
    api = Api(full_house)
    before = api.client.get("/ready").json["notes"]
    with _made(folder):
        with pytest.raises(StorageUnavailable):
            full_house.core.storage.put("jobs/x/items.jsonl", b"{}")
        reply = api.client.get("/ready")
        assert (reply.status_code, reply.json["ready"]) == (200, True)
        named, *rest = reply.json["notes"]
        assert named.startswith("storage file://")
        assert named.endswith("; no job waits for it")
        assert rest == before
        assert api.client.get("/v1/overview").json["notes"] == reply.json["notes"]
        assert 'assay_storage_faults{access="written"} 1.0' in api.client.get("/metrics").text
    full_house.core.storage.put("jobs/x/items.jsonl", b"{}")
    assert api.client.get("/ready").json["notes"] == before
    assert 'assay_storage_faults{access="written"} 0.0' in api.client.get("/metrics").text


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    folder.mkdir()
    with replaced_by_a_file(folder):
        yield


def test_a_failure_that_no_process_repeats_is_forgotten(fleet: Fleet, folder: Path, state: Redis) -> None:
    with _made(folder), pytest.raises(StorageUnavailable):
        fleet.core.storage.put("jobs/x/items.jsonl", b"{}")
    assert notes(fleet)
    assert 0 < state.ttl(keys.storage_faults()) <= FAULT_S
    ((field, record),) = state.hgetall(keys.storage_faults()).items()
    old = json.loads(record) | {"at": read_time(state) - FAULT_S - 1}
    state.hset(keys.storage_faults(), field, json.dumps(old))
    assert notes(fleet) == []


def test_a_missing_file_is_told_from_a_missing_storage(tmp_path: Path) -> None:
    storage = Storage((tmp_path / "storage").as_uri())
    storage.put("jobs/a/items.jsonl", b"{}")
    with pytest.raises(StoredFileMissing):
        storage.read("jobs/a/parts/1", within="jobs/a")
    with pytest.raises(StorageUnavailable, match="the folder jobs/b is missing"):
        storage.read("jobs/b/parts/1", within="jobs/b")
    with pytest.raises(StorageUnavailable, match="the folder jobs/b is missing"):
        storage.create("jobs/b/parts/1", within="jobs/b")
    with not_mounted(tmp_path / "storage"), pytest.raises(StorageUnavailable, match="the folder jobs is missing"):
        storage.read("jobs/a/items.jsonl")
    assert storage.read("jobs/a/items.jsonl") == b"{}"
