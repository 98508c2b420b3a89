"""Large jobs: items are kept in the storage, outcomes move to it part by part, and none is lost or left in Redis."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import keys
from config.settings import Settings
from tasks.errors import Conflict, InvalidRequest, StorageNotShared, StorageUnavailable, UnknownJob
from tasks.jobs.model import Job, JobHead
from tasks.jobs.state.layout import Layout
from tests.support.fleet import Fleet, Hand
from tests.support.programs import wait_until
from tests.support.rollback import roll_back, save

NUMBER = 5600  # a full part and the beginning of a second


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """Jobs of more than 50 items are stored."""
    fleet = Fleet(
        settings.model_copy(update={"stored_items": 50, "storage_shared": True, "heartbeat_ttl_s": 600.0}),
        tmp_path / "journal",
    )
    yield fleet
    fleet.close()


def lines(number: int, **fields: Any) -> Iterator[bytes]:
    return (json.dumps({"id": f"item-{x}", "x": x} | fields).encode() for x in range(number))


def submit(fleet: Fleet, number: int = NUMBER, key: str | None = None, **options: Any) -> str:
    return fleet.core.submitter.submit_lines(JobHead(kind="simulated", **options), lines(number), key)


def files(settings: Settings) -> list[Path]:
    root = settings.data_dir / "storage" / "jobs"
    return sorted(path for path in root.rglob("*") if path.is_file()) if root.exists() else []


def held(fleet: Fleet, job: str) -> int:
    """Return the number of a job's outcomes that Redis holds."""
    state = fleet.core.state
    return sum(state.hlen(key) for key in state.keys(keys.job_outcomes(job, "*")))


def compute(fleet: Fleet, job: str, device: Hand) -> None:
    """Run the device until every item has an outcome; no outcome is moved to the storage yet."""
    wait_until(lambda: device.work() or fleet.job(job).state == "finishing", "every item is computed")


def whole(fleet: Fleet, job: Job) -> list[dict[str, Any]]:
    """Return the rows read by page, after checking that the stream of lines contains the same rows."""
    rows = list(fleet.core.results.read(job))
    assert [json.loads(line) for line in b"".join(fleet.core.results.lines(job)).splitlines()] == rows
    return rows


def test_a_large_job_ends_with_every_outcome_in_order_in_the_storage(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = submit(fleet)
    done = fleet.finish(job, device, cpu)
    assert (done.state, done.ok, done.total) == ("done", NUMBER, NUMBER)
    rows = whole(fleet, done)
    assert [row["index"] for row in rows] == list(range(NUMBER))
    assert [(row["id"], row["value"]["x"]) for row in rows] == [(f"item-{x}", x) for x in range(NUMBER)]
    assert held(fleet, job) == 0
    assert len(files(fleet.settings)) == 3, "the items and two parts"
    events = [fields["event"] for _, fields in fleet.core.results.events(job, "0", 1)]
    assert events[-2:] == ["finishing", "done"]


def test_a_list_of_many_items_is_stored_too(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = fleet.submit(*[{"x": x} for x in range(51)])
    assert fleet.job(job).layout.is_stored
    done = fleet.finish(job, device, cpu)
    assert [row["value"]["x"] for row in whole(fleet, done)] == list(range(51))


def test_few_lines_make_a_small_job(fleet: Fleet) -> None:
    job = submit(fleet, 50)
    assert (fleet.job(job).layout, fleet.job(job).total) == (Layout(), 50)
    assert files(fleet.settings) == []


def test_finished_rows_are_readable_in_order_while_the_job_runs(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = submit(fleet)
    fleet.core.pause_queue("cpu")  # no outcome is moved
    compute(fleet, job, device)
    assert [row["index"] for row in whole(fleet, fleet.job(job))] == list(range(NUMBER))
    fleet.core.resume_queue("cpu")
    cpu.work()
    assert fleet.job(job).state == "done"
    assert len(whole(fleet, fleet.job(job))) == NUMBER


def test_a_part_begun_by_a_dead_worker_is_moved_by_another_worker(fleet: Fleet) -> None:
    device, dead, cpu = fleet.hire(), fleet.hire("cpu", 0), fleet.hire("cpu", 1)
    job = submit(fleet)
    compute(fleet, job, device)
    assert {chunk.stage for chunk in dead.take()} == {"~parts"}
    dead.leave()
    fleet.recovery.bury(dead.runner.incarnation)
    cpu.work()
    assert fleet.finish(job, device, cpu).state == "done"
    assert len(whole(fleet, fleet.job(job))) == NUMBER


def test_the_first_file_of_a_part_wins_and_a_later_file_is_deleted(fleet: Fleet) -> None:
    device, slow, cpu = fleet.hire(), fleet.hire("cpu", 0), fleet.hire("cpu", 1)
    job = submit(fleet, 100)
    compute(fleet, job, device)
    (chunk,) = slow.take()
    fleet.recovery.release(slow.worker.name)  # without a heartbeat it is declared dead, but it still works
    cpu.work()
    assert fleet.job(job).state == "done"
    slow.core.outcomes.move(slow.core.ledger, fleet.job(job), chunk, 0, over=True)
    assert len(files(fleet.settings)) == 2
    assert len(whole(fleet, fleet.job(job))) == 100


def test_a_mover_whose_take_was_lost_does_not_end_the_chunk_of_the_next_mover(fleet: Fleet) -> None:
    url = fleet.settings.redis_url
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = submit(fleet, 100)
    compute(fleet, job, device)
    fleet.core.dispatcher.fill("cpu")
    dump = save(url)
    (early,) = cpu.take("first")
    roll_back(url, dump)  # Redis loses the take
    (late,) = cpu.take("second")
    assert late.id == early.id
    assert not fleet.core.ledger.move(early, 0, "", over=True)
    assert fleet.core.ledger.held(cpu.runner.incarnation) == [(late.id, "second")]
    cpu.core.outcomes.move(cpu.core.ledger, fleet.job(job), late, 0, over=True)
    assert fleet.job(job).state == "done"
    assert len(whole(fleet, fleet.job(job))) == 100


def test_a_part_that_cannot_be_stored_stays_in_redis(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = submit(fleet, 100)
    compute(fleet, job, device)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    with monkeypatch.context() as patch:
        patch.setattr("tasks.jobs.state.outcome_store.part_path", broken)
        cpu.work()
    assert fleet.job(job).state == "done"
    assert len(whole(fleet, fleet.job(job))) == 100


def test_redis_holds_at_most_a_window_of_items(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow mover of outcomes slows the workers down, so Redis does not fill up."""
    monkeypatch.setattr("tasks.jobs.submission.submitter.WINDOW_ITEMS", 10_000)
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = submit(fleet, 16_000)
    fleet.core.pause_queue("cpu")
    wait_until(lambda: device.work() or held(fleet, job) >= 10_000, "the window is full")
    device.work()
    assert held(fleet, job) <= 10_500
    fleet.core.resume_queue("cpu")
    assert fleet.finish(job, device, cpu).ok == 16_000
    assert held(fleet, job) == 0


def test_groups_of_a_large_job_run_complete(fleet: Fleet) -> None:
    cpu = fleet.hire("cpu")
    spec = {"stages": [{"name": "rule", "pool": "cpu"}, {"name": "group", "pool": "cpu", "grouped": True}]}
    body = [json.dumps({"x": x, "group_id": f"g{x % 40}"}).encode() for x in range(400)]
    job = fleet.core.submitter.submit_lines(JobHead(kind="simulated", spec=spec), body)
    assert fleet.finish(job, cpu).state == "done"
    assert {row["parts"]["members"] for row in whole(fleet, fleet.job(job))} == {10.0}


def test_groups_beyond_one_page_of_the_ledger_run_complete(fleet: Fleet) -> None:
    cpu = fleet.hire("cpu")
    spec = {"stages": [{"name": "rule", "pool": "cpu"}, {"name": "group", "pool": "cpu", "grouped": True}]}
    body = (json.dumps({"x": x, "group_id": f"g{x % 90}"}).encode() for x in range(9000))
    job = fleet.core.submitter.submit_lines(JobHead(kind="simulated", spec=spec), body)
    assert fleet.finish(job, cpu).ok == 9000
    assert {row["parts"]["members"] for row in whole(fleet, fleet.job(job))} == {100.0}


def test_retry_of_a_large_job_runs_failed_items_and_rewrites_their_parts(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    body = [json.dumps({"id": str(x), "x": x, "fail": x in (3, 5400)}).encode() for x in range(NUMBER)]
    job = fleet.core.submitter.submit_lines(JobHead(kind="simulated", on_error={"fill": -1.0}), body)
    assert fleet.finish(job, device, cpu).failed == 2
    before = files(fleet.settings)
    assert fleet.core.retry_failed(job) == 2
    running = whole(fleet, fleet.job(job))
    assert len(running) == NUMBER - 2, "a retried item has no outcome while it runs"
    after = fleet.finish(job, device, cpu)
    assert (after.state, after.ok, after.failed, after.epoch) == ("done", NUMBER - 2, 2, 1)
    rows = whole(fleet, after)
    assert [row["index"] for row in rows] == list(range(NUMBER))
    assert [(row["status"], row["score"]) for row in (rows[3], rows[5400])] == [("failed", -1.0)] * 2
    assert len(fleet.computed()) == NUMBER + 2
    assert len(files(fleet.settings)) == len(before) + 2, "replaced files of two parts stay until the job is removed"
    fleet.core.purge(job)
    fleet.tick()
    assert files(fleet.settings) == []


def test_a_job_cancelled_while_its_outcomes_are_moved_keeps_every_outcome(fleet: Fleet) -> None:
    device = fleet.hire()
    job = submit(fleet, 100)
    compute(fleet, job, device)
    assert fleet.core.cancel(job) == "cancelled"
    cpu = fleet.hire("cpu")
    cpu.work()
    assert fleet.job(job).state == "cancelled"
    assert {row["status"] for row in whole(fleet, fleet.job(job))} == {"ok"}


def test_a_cancelled_large_job_keeps_its_finished_items(fleet: Fleet) -> None:
    device = fleet.hire()
    job = submit(fleet)
    (chunk, *_) = device.take()
    device.begin([chunk])
    from tasks.jobs.model import Result
    from tasks.jobs.state.outcome import settle

    device.core.ledger.commit(chunk, "w", 0.1, [settle(0, {"id": "item-0"}, Result(score=1.0))])
    fleet.core.cancel(job)
    rows = whole(fleet, fleet.job(job))
    assert (rows[0]["status"], rows[1]["status"], rows[-1]["id"]) == ("ok", "cancelled", f"item-{NUMBER - 1}")


def test_values_too_long_for_redis_are_kept_in_files(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    stages = [{"name": "run", "pool": "device"}, {"name": "post", "pool": "cpu"}]
    for number in (3, 60):
        job = submit(fleet, number, spec={"result_bytes": 100_000, "stages": stages})
        assert fleet.finish(job, device, cpu).state == "done"
        assert {len(row["value"]["pad"]) for row in whole(fleet, fleet.job(job))} == {100_000}
    assert fleet.core.state.info("memory")["used_memory"] < 50_000_000


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"x": 1', "Line 61: is not JSON"),
        (b'{"y": 1}', "Line 61: y: Extra inputs are not permitted"),
        (b'{"x": NaN}', "Line 61: is not JSON"),
        (b'{"x": [1, 1e999]}', r"Line 61: x\[1\]: is not a finite number"),
        (b"[1, 2]", "Line 61: is not a JSON object"),
    ],
)
def test_an_invalid_line_is_reported_by_number_and_leaves_no_file_or_key(
    fleet: Fleet, bad: bytes, message: str
) -> None:
    body = [*lines(60), bad, *lines(60)]
    with pytest.raises(InvalidRequest, match=message):
        fleet.core.submitter.submit_lines(JobHead(kind="simulated"), body)
    assert files(fleet.settings) == []
    assert fleet.core.state.keys("assay:job*") == []
    assert fleet.core.state.keys("assay:staging") == []


def test_a_repeated_upload_with_its_key_is_one_job_and_a_different_body_a_conflict(fleet: Fleet) -> None:
    first = submit(fleet, 100, key="once")
    assert submit(fleet, 100, key="once") == first
    with pytest.raises(Conflict):
        submit(fleet, 101, key="once")
    assert len(files(fleet.settings)) == 1


def test_an_interrupted_upload_is_deleted(fleet: Fleet) -> None:
    def cut_off() -> Iterator[bytes]:
        yield from lines(3000)
        raise SystemExit("the process was told to end")

    with pytest.raises(SystemExit):
        fleet.core.submitter.submit_lines(JobHead(kind="simulated"), cut_off())
    assert files(fleet.settings) == []
    fleet.core.storage.put(
        "jobs/killed~1/items.jsonl", b"{}\n"
    )  # as after kill -9, when the process could not delete its files
    fleet.core.state.zadd(keys.staging(), {"killed~1": 1})
    fleet.tick()
    assert files(fleet.settings) == []
    assert fleet.core.state.zcard(keys.staging()) == 0


def test_an_expired_large_job_leaves_nothing_behind(fleet: Fleet, state: Any) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = submit(fleet, 9000)
    assert fleet.finish(job, device, cpu).state == "done"
    state.zadd(keys.expiry(), {job: 1})
    fleet.tick()
    fleet.tick()  # the second tick deletes the files
    assert files(fleet.settings) == []
    assert state.keys(f"assay:job:{job}*") == []


def test_a_local_storage_folder_is_refused_if_there_are_several_hosts(settings: Settings, fleet: Fleet) -> None:
    fleet.hire()  # on a host named "box"
    fleet.settings = settings
    local = Fleet(settings.model_copy(update={"stored_items": 50, "storage_shared": False}), fleet.journal)
    with pytest.raises(StorageNotShared, match="ASSAY_STORAGE_URL"):
        submit(local, 100)
    local.close()


# --- regressions found in a review: each case hung, or lost or invented outcomes ---

GROUPED = {"stages": [{"name": "rule", "pool": "cpu"}, {"name": "group", "pool": "cpu", "grouped": True}]}


def test_a_retry_of_items_in_more_parts_than_a_window_ends(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.jobs.submission.submitter.WINDOW_ITEMS", 5000)
    device, cpu = fleet.hire(), fleet.hire("cpu")
    body = [json.dumps({"x": x, "fail": x in (1, 5001, 10_001)}).encode() for x in range(10_100)]
    job = fleet.core.submitter.submit_lines(JobHead(kind="simulated"), body)
    assert fleet.finish(job, device, cpu).failed == 3
    assert fleet.core.retry_failed(job) == 3
    after = fleet.finish(job, device, cpu)
    assert (after.state, after.failed, after.epoch) == ("done", 3, 1)
    assert int(fleet.core.state.hget(keys.job(job), "inflight") or 0) == 0


def test_groups_spread_over_more_than_a_window_run(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.jobs.submission.submitter.WINDOW_ITEMS", 1000)
    cpu = fleet.hire("cpu")
    body = [json.dumps({"x": x, "group_id": f"g{x % 1500}"}).encode() for x in range(3000)]
    job = fleet.core.submitter.submit_lines(JobHead(kind="simulated", spec=GROUPED), body)
    assert fleet.finish(job, cpu).ok == 3000
    assert {row["parts"]["members"] for row in whole(fleet, fleet.job(job))} == {2.0}


def test_a_part_that_was_complete_when_the_job_failed_is_moved_after_a_retry(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    body = [json.dumps({"x": x, "fail_times": 9 if x == 5100 else 0}).encode() for x in range(5200)]
    head = JobHead(kind="simulated", on_error="fail", spec={"batch_items": 100})
    job = fleet.core.submitter.submit_lines(head, body)
    fleet.core.pause_queue("cpu")  # the first part is complete and not moved

    def look() -> bool:
        fleet.tick()
        device.work()
        return fleet.job(job).state == "failed"

    wait_until(look, "the job fails because of its failing item")
    fleet.core.resume_queue("cpu")
    fleet.core.state.hset(keys.job(job), "max_failed_share", "1")
    assert fleet.core.retry_failed(job) >= 1

    def ends() -> bool:
        fleet.tick()
        device.work()
        cpu.work()
        return not fleet.job(job).is_active

    wait_until(ends, "it ends after the retry")
    assert (fleet.job(job).state, fleet.job(job).failed) == ("done", 1)
    assert len(whole(fleet, fleet.job(job))) == 5200


def test_a_part_that_could_not_be_moved_twice_stays_readable(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    body = [json.dumps({"x": x, "fail": x == 3}).encode() for x in range(100)]
    job = fleet.core.submitter.submit_lines(JobHead(kind="simulated"), body)
    fleet.finish(job, device, cpu)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    for _ in range(2):
        fleet.core.retry_failed(job)
        with monkeypatch.context() as patch:
            patch.setattr("tasks.jobs.state.outcome_store.part_path", broken)
            assert fleet.finish(job, device, cpu).state == "done"
    assert [row["status"] for row in whole(fleet, fleet.job(job))] == ["ok"] * 3 + ["failed"] + ["ok"] * 96


def test_items_with_a_deleted_file_fail_without_blocking_their_groups(fleet: Fleet) -> None:
    body = [json.dumps({"x": x, "group_id": f"g{x % 10}"}).encode() for x in range(100)]
    job = fleet.core.submitter.submit_lines(JobHead(kind="simulated", spec=GROUPED), body)
    (items,) = files(fleet.settings)
    items.unlink()
    ended = fleet.finish(job, fleet.hire("cpu"))
    assert (ended.state, ended.reasons) == ("done", {"payload_lost": 100})


def test_items_with_a_lost_payload_in_redis_fail(fleet: Fleet) -> None:
    job = fleet.submit(*[{"x": x} for x in range(3)])
    fleet.core.state.delete(keys.job_blocks(job))
    ended = fleet.finish(job, fleet.hire())
    assert ended.reasons == {"payload_lost": 3}


def test_a_job_that_expires_while_it_is_read_is_unknown_and_not_unfinished(fleet: Fleet) -> None:
    device, cpu = fleet.hire(), fleet.hire("cpu")
    job = fleet.finish(submit(fleet), device, cpu)
    fleet.core.ledger.remove(job.id)
    with pytest.raises(UnknownJob):
        list(fleet.core.results.read(job))


def test_an_abandoned_upload_creates_no_job(fleet: Fleet) -> None:
    def slow() -> Iterator[bytes]:
        yield from lines(2000)
        fleet.core.state.delete(keys.staging())  # as the sweep does after an hour without a page

    with pytest.raises(StorageUnavailable, match="send it again"):
        fleet.core.submitter.submit_lines(JobHead(kind="simulated"), slow())
    assert fleet.core.state.zcard(keys.jobs()) == 0


def test_a_failing_storage_does_not_stop_recovery(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = fleet.hire()
    job = fleet.submit({"x": 1})
    hand.take()
    hand.leave()
    fleet.core.state.zadd(keys.staging(), {"old~1": 0})

    def away(*_: object, **__: object) -> None:
        raise RuntimeError("an error of the storage's own library")

    monkeypatch.setattr(fleet.core.storage._filesystem[0].__class__, "rm", away)
    fleet.core.state.hset(keys.tick(), mapping={"last": "9999999999", "grace_until": "0"})
    fleet.tick()
    assert fleet.core.state.smembers(keys.holders()) == set(), "the dead worker's chunks are released"
    other = fleet.hire(index=1)
    assert fleet.finish(job, other).ok == 1
