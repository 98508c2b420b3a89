"""Scorer `policy`: uses responses as instructions for episodes, which run on devices with a policy server."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from config import keys
from config.settings import Settings
from tasks.counters import Totals
from tasks.errors import InvalidRequest, StoredFileMissing
from tasks.jobs.model import JobRequest
from tasks.jobs.stage import Work
from tasks.scoring.model import ScoreItem, ScoreSpec
from tests.support.fleet import Fleet, Hand
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, wait_until
from workers.development_policy.control import Handle, running, several

RED = {"response": "reach the red target"}
WRONG = {"response": "reach the blue target"}


@pytest.fixture
def server() -> Iterator[Handle]:
    with running() as handle:
        yield handle


@pytest.fixture
def cpu(fleet: Fleet) -> Hand:
    return fleet.hire("cpu")


def submit(fleet: Fleet, *items: dict[str, Any], cache: str = "use", **options: Any) -> str:
    fleet.core.dispatcher.forget_fleet()
    spec = {"scorers": [{"name": "policy", "options": options}]}
    return fleet.core.submitter.submit(JobRequest(kind="score", items=list(items), spec=spec, cache=cache))


def hire_on(fleet: Fleet, *urls: str, index: int = 0) -> Hand:
    """Start a device worker connected to the given servers."""
    hand = fleet.hire(index=index, policies=urls)
    wait_until(lambda: all(server.connected for server in _told(fleet, hand)), "its servers are connected")
    return hand


def _told(fleet: Fleet, hand: Hand) -> tuple[Any, ...]:
    told = fleet.core.registry.get(hand.worker.name)
    return told.policies if told else ()


def _version_asked_for(hand: Hand) -> str:
    kind = hand.core.kinds["score"]
    spec, item = ScoreSpec.model_validate({"scorers": [{"name": "policy"}]}), ScoreItem.model_validate(RED)
    key = kind.stages(spec)[0].key(Work(0, item, spec=spec))
    return str(key["policy"]["version"]) if key else ""


def scores(fleet: Fleet, job: str) -> list[float | None]:
    return [row["score"] for row in fleet.rows(job)]


def test_a_correct_instruction_scores_1_and_a_wrong_instruction_0_with_full_records(
    fleet: Fleet, cpu: Hand, server: Handle
) -> None:
    device = hire_on(fleet, server.url)
    job = submit(fleet, RED, WRONG, {"response": "", "task": {"task_id": 2}}, trials=3)
    done = fleet.finish(job, device, cpu)
    assert (done.state, done.total, done.ok) == ("done", 3, 3)
    counted = dict(Totals.read(fleet.core.state).of("items"))
    assert counted == {("score", "ok"): 3}, "three items, independent of their trials"
    right, wrong, own = fleet.rows(job)
    assert (right["score"], wrong["score"], own["score"]) == (1.0, 0.0, 1.0)
    parts = right["parts"]
    assert (parts["policy"], parts["policy.episodes"], parts["policy.high"]) == (1.0, 3.0, 1.0)
    assert 0.4 < parts["policy.low"] < 0.5, "three episodes are few"
    assert wrong["parts"]["policy.mean_steps"] == 40
    assert parts["policy.mean_inference_ms"] > 0
    episodes = right["value"]["episodes"]
    assert [(each["trial"], each["init_state"], each["success"]) for each in episodes] == [
        (0, 0, True), (1, 1, True), (2, 2, True),
    ]  # fmt: skip
    assert {each["server"] for each in episodes} == {server.url}
    assert own["value"]["episodes"][0]["instruction"] == "reach the blue target", "the task's own"


def test_an_empty_response_falls_back_to_the_items_instruction(fleet: Fleet, cpu: Hand, server: Handle) -> None:
    device = hire_on(fleet, server.url)
    job = submit(fleet, {"response": " ", "task": {"instruction": "reach the green target", "task_id": 1, "seed": 3}})
    fleet.finish(job, device, cpu)
    (row,) = fleet.rows(job)
    (episode,) = row["value"]["episodes"]
    assert (row["score"], episode["instruction"], episode["seed"]) == (1.0, "reach the green target", 3)


def test_an_episode_that_cannot_run_is_an_error_not_a_failure_of_the_policy(
    fleet: Fleet, cpu: Hand, server: Handle
) -> None:
    device = hire_on(fleet, server.url)
    server.set(share_shape=1)
    job = submit(fleet, RED, trials=2)
    fleet.finish(job, device, cpu)
    (row,) = fleet.rows(job)
    assert (row["status"], row["score"], row["valid"], row["error"]["type"]) == ("failed", None, False, "policy_failed")
    assert row["error"]["message"].startswith("None of 2 episodes ran: ")


def test_the_score_is_over_the_episodes_that_ran(fleet: Fleet, cpu: Hand, server: Handle) -> None:
    device = hire_on(fleet, server.url)
    server.set(share_error=0.2, error="ValueError", seed=3)
    job = submit(fleet, RED, RED, WRONG, trials=4, cache="off")
    fleet.finish(job, device, cpu)
    rows = fleet.rows(job)
    ran = [len(row["value"]["episodes"]) for row in rows]
    assert all(each + len(row["value"]["failed"]) == 4 for each, row in zip(ran, rows, strict=True))
    assert 0 < sum(ran) < 12
    assert [row["score"] for row in rows if row["valid"]] == [
        float(row["index"] < 2) for row in rows if row["valid"]
    ], "failed episodes do not count"


def test_episodes_are_retried_while_a_server_fails(fleet: Fleet, cpu: Hand, server: Handle) -> None:
    device = hire_on(fleet, server.url)
    server.set(share_drop=0.3, seed=1)
    job = submit(fleet, *[RED] * 4, cache="off")

    def is_over() -> bool:
        if server.counts().get("calls", 0) > 4:
            server.set(share_drop=0)
        fleet.tick()
        return not fleet.finish_step(job, device, cpu)

    wait_until(is_over, "the job ends")
    assert scores(fleet, job) == [1.0] * 4


@pytest.mark.parametrize(
    ("knobs", "kinds"),
    [
        ({"share_error": 1}, {"policy_broken"}),
        ({"share_error": 1, "error": "ValueError"}, {"policy_failed"}),
        ({"share_hang": 1}, {"policy_timeout"}),
        ({"share_garbage": 1}, {"policy_broken"}),
        ({"share_shape": 1}, {"policy_failed"}),
        ({"share_drop": 1}, {"policy_unavailable"}),
        ({"greeting": "garbage"}, {"policy_broken", "policy_unavailable"}),
    ],
)
def test_a_misbehaving_server_gives_typed_errors_and_other_devices_continue(
    settings: Settings, tmp_path: Path, knobs: dict[str, Any], kinds: set[str]
) -> None:
    reply_s = 2.0 if "share_hang" in knobs else PATIENCE_S
    quick = settings.model_copy(update={"policy_reply_s": reply_s, "policy_wait_s": 2.0})
    with several(2) as (good, bad), closing(Fleet(quick, tmp_path / "journal")) as fleet:
        first, cpu = hire_on(fleet, good.url, index=0), fleet.hire("cpu")
        bad.set(**knobs)
        second = fleet.hire(index=1, policies=(bad.url,))
        job = submit(fleet, *[RED] * 6, trials=2, cache="off")

        def is_over() -> bool:
            fleet.tick()
            return not fleet.finish_step(job, first, second, cpu)

        wait_until(is_over, "the job ends")
        episodes = [each for row in fleet.rows(job) for each in (row["value"] or {"episodes": []})["episodes"]]
        assert episodes
        assert {(each["server"], each["success"]) for each in episodes} == {(good.url, True)}
        failed = [each["type"] for row in fleet.rows(job) for each in (row["value"] or {"failed": []})["failed"]]
        assert set(failed) <= kinds


def test_repeated_episodes_are_cached_until_the_checkpoint_changes(fleet: Fleet, cpu: Hand) -> None:
    port = free_port()
    with running(port=port) as old:
        device = hire_on(fleet, old.url)
        first = submit(fleet, RED, WRONG, trials=2)
        fleet.finish(first, device, cpu)
        calls = old.counts()["calls"]
        again = submit(fleet, RED, WRONG, trials=2)
        assert fleet.finish(again, device, cpu).cached == 2
        more = submit(fleet, RED, trials=3)
        fleet.finish(more, device, cpu)
        assert old.counts()["calls"] > calls, "the third trial is new"
        assert [each["trial"] for each in fleet.rows(more)[0]["value"]["episodes"]] == [0, 1, 2]
        assert scores(fleet, first) == scores(fleet, again) == [1.0, 0.0]
    with running(port=port, version="2") as new:
        wait_until(lambda: {server.version for server in _told(fleet, device)} == {"2"}, "it reports the new version")
        wait_until(lambda: _version_asked_for(device) == "2", "the worker asks for the new one's episodes")
        job = submit(fleet, RED, WRONG, trials=2)
        assert fleet.finish(job, device, cpu).cached == 0
        assert new.counts()["calls"] > 0


def test_episodes_of_an_unknown_version_are_not_cached(fleet: Fleet, cpu: Hand) -> None:
    with running(version="") as server:
        device = hire_on(fleet, server.url)
        for _ in range(2):
            job = submit(fleet, RED)
            assert fleet.finish(job, device, cpu).cached == 0


def test_only_devices_with_a_policy_server_get_episodes(fleet: Fleet, cpu: Hand, server: Handle) -> None:
    bare, device = fleet.hire(index=0), hire_on(fleet, server.url, index=1)
    job = submit(fleet, RED, WRONG, RED, trials=4)
    bare.work()
    assert fleet.job(job).ok == 0
    done = fleet.finish(job, bare, device, cpu)
    assert set(done.workers) == {"gpu.node1.1", "cpu.node1.0"}


def test_a_device_without_its_server_leaves_episodes_to_other_devices(fleet: Fleet, cpu: Hand, server: Handle) -> None:
    away = fleet.hire(index=0, policies=(f"ws://127.0.0.1:{free_port()}",))
    device = hire_on(fleet, server.url, index=1)
    job = submit(fleet, RED, WRONG)
    assert away.take() == []
    assert fleet.finish(job, device, cpu).ok == 2


def test_a_server_has_a_single_owner_process(fleet: Fleet, cpu: Hand, server: Handle) -> None:
    first = hire_on(fleet, server.url, index=0)
    second = fleet.hire(index=1, policies=(server.url,))
    wait_until(lambda: all(each.elsewhere for each in _told(fleet, second)), "the second process sees the owner")
    job = submit(fleet, RED)
    assert second.take() == []
    assert fleet.finish(job, first, cpu).ok == 1
    assert server.counts()["connections"] == 1


def test_device_work_and_episodes_share_the_queues_fairly(fleet: Fleet, cpu: Hand, server: Handle) -> None:
    device = hire_on(fleet, server.url)
    other = fleet.submit(*[{"x": x} for x in range(50)])
    job = submit(fleet, RED)
    fleet.finish(job, device, cpu)
    assert fleet.finish(other, device, cpu).ok == 50


def test_concurrent_jobs_on_several_servers_never_mix_results(fleet: Fleet, cpu: Hand) -> None:
    with several(2) as servers:
        device = hire_on(fleet, *(server.url for server in servers))
        jobs = [
            submit(fleet, {"response": f"reach the {colour} target", "task": {"task_id": 1}}, trials=3)
            for colour in ("red", "green", "blue")
        ]
        for job in jobs:
            fleet.finish(job, device, cpu)
        assert [scores(fleet, job) for job in jobs] == [[0.0], [1.0], [0.0]]
        assert all(server.counts()["calls"] for server in servers)


def test_a_video_is_stored_with_the_job_and_deleted_with_it(settings: Settings, tmp_path: Path, server: Handle) -> None:
    shared = settings.model_copy(update={"storage_shared": True})
    with closing(Fleet(shared, tmp_path / "journal")) as fleet:
        device, cpu = hire_on(fleet, server.url), fleet.hire("cpu")
        name = submit(fleet, RED, video=True)
        fleet.finish(name, device, cpu)
        job = fleet.job(name)
        (episode,) = fleet.rows(name)[0]["value"]["episodes"]
        assert fleet.core.kept_file(job, episode["video"])[:4] == b"RIFF"
        fleet.core.state.zadd(keys.expiry(), {name: 1})

        def is_gone() -> bool:
            fleet.tick()
            try:
                return not fleet.core.kept_file(job, episode["video"])
            except StoredFileMissing:
                return True

        wait_until(is_gone, "the job expires")


def test_a_video_is_not_stored_without_shared_storage(fleet: Fleet, cpu: Hand, server: Handle) -> None:
    device = hire_on(fleet, server.url)
    job = submit(fleet, RED, video=True)
    assert fleet.finish(job, device, cpu).ok == 1
    assert fleet.rows(job)[0]["value"]["episodes"][0]["video"] is None


def test_rule_scorers_combine_with_the_policy(fleet: Fleet, cpu: Hand, server: Handle) -> None:
    device = hire_on(fleet, server.url)
    fleet.core.dispatcher.forget_fleet()
    scorers = [{"name": "policy", "as": "success"}, {"name": "length", "gate": True, "options": {"most": 100}}]
    request = JobRequest(kind="score", items=[RED], spec={"scorers": scorers})
    job = fleet.core.submitter.submit(request)
    fleet.finish(job, device, cpu)
    (row,) = fleet.rows(job)
    assert (row["score"], row["parts"]["success"], row["parts"]["length"]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"scorers": [{"name": "policy"}, {"name": "policy", "as": "b"}]}, "one policy"),
        ({"scorers": [{"name": "policy"}], "judge": {"profile": "development"}}, "remove the judge"),
        ({"scorers": [{"name": "policy"}], "group_statistics": True}, "and group statistics"),
        ({"scorers": [{"name": "policy"}, {"name": "similarity"}]}, "the model scorers"),
        ({"scorers": [{"name": "policy", "options": {"environment": {"name": "moon"}}}]}, "moon"),
        ({"scorers": [{"name": "policy", "options": {"trials": 0}}]}, "greater than or equal to 1"),
    ],
)
def test_a_policy_refuses_incompatible_parts_with_a_reason(fleet: Fleet, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        fleet.core.submitter.submit(JobRequest(kind="score", items=[RED], spec=spec))
