"""Benchmark runs on a real Redis: measurement, report, history and comparison; the schedule; the HTTP API."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis

from config import keys
from config.profiles import load_profiles
from config.schedule import SLOT
from config.settings import Settings
from tasks.app import create_celery
from tasks.deployment_benchmarks.deployment import Deployment
from tasks.deployment_benchmarks.figure_history import FigureHistory, FigureOfRun
from tasks.deployment_benchmarks.model import BenchmarkItem, RunOptions
from tasks.deployment_benchmarks.run_history import MOST_RUNS, UNBEGUN, Run, RunHistory
from tasks.deployment_benchmarks.runner import Bench
from tasks.deployment_benchmarks.runs import Runs
from tasks.deployment_benchmarks.simulated_trainer import MINIMAL, Trainer, Training
from tasks.deployment_benchmarks.weight_syncs import WeightSyncs
from tasks.errors import Conflict, NoLongerWanted, RedisUnavailable, StoredFileMissing
from tasks.jobs.model import JobRequest
from tasks.measurement.timed_job import MeasurementFailed
from tasks.rollouts.model import RolloutSpec
from tasks.rollouts.rollouts import Rollouts
from tasks.rollouts.sample_queue import bundles_of
from tasks.rollouts.simulation import Simulation
from tests.integration.api import Api, is_problem
from tests.support import tiny_models
from tests.support.fleet import Fleet, Hand
from tests.support.programs import PATIENCE_S, wait_until
from tests.support.redis_server import RedisServer

ONCE = RunOptions(repetitions=1)
SIMULATED = RolloutSpec(simulated=Simulation(), max_staleness=1, train_batch_size=4, max_queue_size=8)


class Lab:
    """A fleet whose workers run in threads while a benchmark measures it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.runs = Runs(fleet.core, load_profiles(fleet.settings))
        self._hands: list[tuple[Hand, threading.Thread]] = []
        self._ended = threading.Event()

    def hire(self, pool: Any, index: int = 0) -> None:
        hand = self.fleet.hire(pool, index)
        thread = threading.Thread(target=self._work, args=(hand,), daemon=True)
        self._hands.append((hand, thread))
        thread.start()

    def _work(self, hand: Hand) -> None:
        while not self._ended.is_set():
            hand.work()
            self._ended.wait(0.01)

    def measure(self, name: str = "rule_scoring", options: RunOptions = ONCE) -> Run:
        """Start a run, wait for its end and return it."""
        run = self.runs.start(name, options)
        wait_until(lambda: self.runs.get(run.id).ended_at is not None, "the run ends")
        return self.runs.get(run.id)

    def figures(self, run: Run) -> list[FigureOfRun]:
        return self.runs.figures.of_run(run.id)

    def figure(self, run: Run, name: str) -> FigureOfRun:
        return next(figure for figure in self.figures(run) if figure.figure == name)

    def remember(self, run: Run, *figures: FigureOfRun) -> None:
        """Store an earlier run with these figures."""
        self.runs.history.add(run)
        self.runs.figures.add(run.id, run.name, run.created_at, figures)

    def close(self) -> None:
        self._ended.set()
        for _, thread in self._hands:
            thread.join()


@pytest.fixture
def lab(fleet: Fleet) -> Iterator[Lab]:
    lab = Lab(fleet)
    yield lab
    lab.close()


NAME = "rule_scoring/numeric_match/items_s"


def test_a_run_measures_every_case_and_writes_a_report(lab: Lab) -> None:
    lab.hire("cpu")
    lab.hire("benchmark")
    run = lab.measure()
    assert (run.state, run.note, run.total, lab.runs.done(run)) == ("done", "", 2, 2)
    assert lab.figure(run, NAME).value > 0
    assert not lab.figure(run, NAME).is_disturbed
    documents = {"performance_report.md", "summary.txt", "results.json"}
    assert {*run.files} == documents | {"rule_scoring.png", "rule_scoring.log"}
    read = lambda name: lab.fleet.core.storage.read(f"benchmarks/{run.folder}/{name}")  # noqa: E731
    assert b"| numeric_match |" in read("performance_report.md")
    assert read("rule_scoring.png").startswith(b"\x89PNG")
    assert b"== math_equal, repetition 1" in read("rule_scoring.log")
    told = json.loads(read("results.json"))
    measured = {each["id"] for each in told["measurements"]}
    assert measured == {"rule_scoring/numeric_match/0", "rule_scoring/math_equal/0"}


def test_a_regression_is_flagged_in_the_report_the_api_and_the_metrics(lab: Lab, api: Api) -> None:
    lab.hire("cpu")
    lab.hire("benchmark")
    first = lab.measure()
    faster = tuple(replace(figure, value=1000 * figure.value) for figure in lab.figures(first))
    for number in range(5):
        lab.remember(replace(first, id=f"{number:032x}"), *faster)
    again = lab.measure()
    worse = lab.figure(again, NAME)
    assert worse.is_regression
    assert (worse.usual, again.regressions > 0) == (1000 * lab.figure(first, NAME).value, True)
    assert b"REGRESSION" in lab.fleet.core.storage.read(f"benchmarks/{again.folder}/summary.txt")
    told = api.client.get("/v1/benchmarks").json["regressions"]
    assert (NAME, again.id) in {(each["figure"], each["run"]) for each in told}
    assert f"assay_benchmark_regressions {float(again.regressions)}\n" in api.client.get("/metrics").text
    history = {each["figure"]: each for each in api.client.get("/v1/benchmarks/figures").json["figures"]}[NAME]
    assert history["is_regression"]
    assert len(history["points"]) == 7
    assert history["band"][0] > worse.value


def test_figures_of_another_machine_or_with_other_parameters_are_not_compared(lab: Lab) -> None:
    lab.hire("cpu")
    lab.hire("benchmark")
    first = lab.measure()
    others = tuple(replace(figure, value=1000 * figure.value, basis="other") for figure in lab.figures(first))
    for number in range(5):
        lab.remember(replace(first, id=f"{number:032x}"), *others)
    assert lab.measure().regressions == 0


def test_the_basis_has_the_devices_of_the_plan_even_if_they_left_since(lab: Lab) -> None:
    lab.hire("cpu")
    lab.hire("benchmark")
    device = lab.fleet.hire()
    bases = set()
    for is_away in (False, True):  # when the report is written
        lab.fleet.core.registry.announce(device.worker)  # it has no heartbeat
        run = lab.runs.start("rule_scoring", ONCE)
        if is_away:
            device.leave()
        wait_until(lambda run=run: lab.runs.get(run.id).state == "done", "it is done")  # type: ignore[misc]
        bases.add(lab.figure(run, NAME).basis)
    assert len(bases) == 1


def test_a_run_shows_its_state_and_its_start_time(lab: Lab) -> None:
    run = lab.runs.start("rule_scoring", ONCE)
    assert (lab.runs.get(run.id).state, lab.runs.done(run)) == ("queued", 0)
    lab.hire("benchmark")
    wait_until(lambda: lab.runs.get(run.id).state == "running", "it is started")
    began = lab.runs.get(run.id).started_at
    lab.hire("cpu")
    wait_until(lambda: lab.runs.get(run.id).state == "done", "it is done")
    done = lab.runs.get(run.id)
    assert done.started_at == began != done.created_at, "the time in the queue does not count"


def test_a_second_run_is_refused_while_a_run_is_active(lab: Lab, api: Api) -> None:
    first = lab.runs.start("rule_scoring", ONCE)
    with pytest.raises(Conflict, match="runs do not overlap"):
        lab.runs.start("quick", ONCE)
    assert is_problem(api.client.post("/v1/benchmarks/quick/runs"), 409)
    lab.fleet.core.cancel(first.job)
    assert lab.runs.get(first.id).state == "cancelled"
    lab.runs.start("quick", ONCE)


def test_a_run_without_a_measurable_scenario_fails_with_the_reason(lab: Lab) -> None:
    run = lab.runs.start("policy_scoring", ONCE)
    note = "No scenario can be measured here: policy_scoring: no policy server is connected"
    assert (run.state, run.note) == ("failed", note)
    lab.runs.start("rule_scoring", ONCE)  # the failed run is not active


def test_a_measurement_beside_foreign_jobs_is_marked_as_disturbed(lab: Lab) -> None:
    lab.hire("cpu")
    deployment = Deployment(lab.fleet.core, "a" * 32, lambda: False)
    hand = lab.fleet.hire()
    lab.fleet.submit({"x": 1})
    assert hand.take()  # a chunk of another job runs during the measurement
    with deployment.observed() as observation:
        deployment.run_job(
            "score", [{"response": "5", "reference": "5"}], spec={"scorers": [{"name": "numeric_match"}]}
        )
        wait_until(lambda: bool(observation.foreign), "it is noticed")
    assert observation.disturbed == "1 other job ran concurrently"


def test_a_measurement_whose_device_restarts_is_marked_as_disturbed(lab: Lab) -> None:
    lab.fleet.hire()
    deployment = Deployment(lab.fleet.core, "a" * 32, lambda: False)
    with deployment.observed(1) as observation:
        lab.fleet.core.registry.leave(observation.devices[0])
        lab.fleet.hire()
    assert observation.disturbed == "gpu.node1.0 left or restarted"


def test_a_case_with_more_slots_than_registered_fails(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.deployment_benchmarks.deployment.DEVICES_S", 0)
    lab.fleet.hire()
    with (
        pytest.raises(MeasurementFailed, match="The case needs 2 usable device slots, and 1 are registered"),
        Deployment(lab.fleet.core, "a" * 32, lambda: False).observed(2),
    ):
        raise AssertionError("it is measured")


def test_a_measurement_with_failed_items_fails_with_their_errors(lab: Lab) -> None:
    lab.hire("device")
    deployment = Deployment(lab.fleet.core, "a" * 32, lambda: False)
    with pytest.raises(MeasurementFailed, match=r"1 of 2 succeeded: 1 simulated_failure"):
        deployment.run_job("simulated", [{"x": 1}, {"x": 2, "fail": True}])


def test_jobs_of_a_killed_process_are_cancelled_by_the_next_measurement(lab: Lab, state: Redis) -> None:
    killed = Deployment(lab.fleet.core, "a" * 32, lambda: False)
    caught = threading.Thread(target=_until_cancelled, args=(killed,))
    caught.start()
    wait_until(lambda: state.scard(keys.benchmark_jobs("a" * 32)) == 1, "a job was started")
    (job,) = state.smembers(keys.benchmark_jobs("a" * 32))
    Deployment(lab.fleet.core, "a" * 32, lambda: False).cancel_jobs()
    caught.join()
    assert lab.fleet.job(str(job)).state == "cancelled"
    assert not state.exists(keys.benchmark_jobs("a" * 32))


def test_jobs_that_a_killed_process_left_do_not_block_the_next_run(lab: Lab) -> None:
    run = lab.runs.start("rule_scoring", ONCE)
    deployment = Deployment(lab.fleet.core, run.id, lambda: False)
    with deployment.rollout(SIMULATED, [b'{"prompt": "1+1="}'], None) as left:  # the measuring process is killed here
        lab.fleet.core.cancel(run.job)
        due = lab.runs.schedule("rule_scoring", "2026-11-18T03:00Z", ONCE)
        assert (due.state, due.note) == ("queued", "")
        assert lab.fleet.job(left).state == "cancelled"


def _until_cancelled(deployment: Deployment) -> None:
    with pytest.raises(MeasurementFailed, match="cancelled"):  # no worker runs it
        deployment.run_job("simulated", [{"x": 1}])


def test_a_cancelled_run_stops_its_current_measurement(lab: Lab) -> None:
    deployment = Deployment(lab.fleet.core, "a" * 32, lambda: True)
    with pytest.raises(NoLongerWanted):
        deployment.run_job("simulated", [{"x": 1}])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"staleness_threshold": 0}, lambda figures: figures["oldest_sample"] == 0),
        ({"staleness_threshold": 2}, lambda figures: 0 < figures["oldest_sample"] <= 2),
        ({"pauses": True, "total_training_steps": 4}, lambda figures: figures["pause_s"] >= 0),
        ({"sync_every": 2, "total_training_steps": 4}, lambda figures: figures["sync_s"] >= 0),
    ],
)
def test_a_training_run_takes_no_samples_beyond_its_staleness_limit(
    lab: Lab, changes: dict[str, Any], expected: Callable[[dict[str, float]], bool]
) -> None:
    lab.hire("device")
    lab.hire("api")
    usual = Training(configuration=MINIMAL, train_s=0.02, generate_s=0.01, reward_s=0.001)
    training = usual.changed(total_training_steps=6, rollout_devices=1).changed(**changes)
    measured = Trainer(Deployment(lab.fleet.core, "a" * 32, lambda: False), training).run()
    figures = dict(measured.figures)
    assert expected(figures), figures
    assert measured.engine == "simulated generation and training"
    assert figures["samples_s"] == pytest.approx(4 * figures["steps_s"])
    assert 0 <= figures["queue_utilisation"] <= 1


class Hook:
    """Callback that runs whenever the trainer waits; it gets the id of the only rollout."""

    def __init__(self, lab: Lab, act: Callable[[str], None]) -> None:
        self._core, self._act = lab.fleet.core, act

    def __call__(self) -> bool:
        (rollout,) = self._core.state.smembers(keys.rollouts())
        self._act(str(rollout))
        return False


def test_dropped_stale_samples_are_counted(lab: Lab) -> None:
    lab.fleet.hire()  # this worker generates nothing: the test puts the samples
    queue = Rollouts(lab.fleet.core, lab.fleet.celery).queue
    samples = iter([(6, 0), (4, 1)])  # two samples of version 0 remain when training continues with version 1

    def put(rollout: str) -> None:
        number, version = next(samples)
        assert queue.put(rollout, bundles_of(["x"] * number, version, {}, is_group=False), f"put {version}")[0]

    usual = Training(configuration=MINIMAL, warm_up=0, train_s=0)
    training = usual.changed(total_training_steps=2, rollout_devices=1, staleness_threshold=0)
    measured = Trainer(Deployment(lab.fleet.core, "a" * 32, Hook(lab, put)), training).run()
    assert measured.figures["dropped_samples"] == 2


def test_a_slow_resume_is_timed_until_the_first_sample(lab: Lab) -> None:
    hand, resumed = lab.fleet.hire(), 0.0

    def work(rollout: str) -> None:
        nonlocal resumed
        if int(lab.fleet.core.state.hget(keys.rollout(rollout), "resumes") or 0):
            resumed = resumed or time.monotonic()
        if time.monotonic() - resumed > 1.2:
            hand.work()

    usual = Training(configuration=MINIMAL, warm_up=0, train_s=0, generate_s=0, reward_s=0, pauses=True)
    training = usual.changed(total_training_steps=4, rollout_devices=1)
    measured = Trainer(Deployment(lab.fleet.core, "a" * 32, Hook(lab, work)), training).run()
    assert measured.figures["resume_s"] > 1.2


def test_a_sync_in_the_background_is_timed_until_every_device_has_the_version(lab: Lab) -> None:
    core, device = lab.fleet.core, lab.fleet.hire().queue
    tiny_models.write(core.settings.models_dir / "tiny")
    deployment = Deployment(core, "a" * 32, lambda: False)
    spec = RolloutSpec(model="tiny", chat="never", max_staleness=1, train_batch_size=4, max_queue_size=8)
    with deployment.rollout(spec, [b'{"prompt": "1+1="}'], None) as rollout:
        syncs, versions = WeightSyncs(deployment.rollouts, rollout), deployment.rollouts.versions
        syncs.announce(1, "file:///weights", "")
        assert (syncs.is_complete(), syncs.seconds) == (False, [])
        versions.confirm(rollout, device, versions.current(rollout), 0.1)
        assert (syncs.is_complete(), syncs.seconds) == (True, [versions.status(rollout).sync_s])
        syncs.announce(2, "file:///weights", "")
        syncs.announce(3, "file:///weights", "")
        assert (len(syncs.seconds), syncs.replaced) == (1, 1), "a replaced version has no duration"
        versions.confirm(rollout, device, versions.current(rollout), 0.1)
        assert (syncs.is_complete(), syncs.seconds[1:]) == (True, [versions.status(rollout).sync_s])
        syncs.announce(4, "file:///weights", "")
        versions.fail(rollout, device, versions.current(rollout), "it is full")
        with pytest.raises(MeasurementFailed, match=r"Version 4 was rolled back: gpu\.node1\.0: it is full"):
            syncs.is_complete()


def test_an_outage_of_redis_makes_a_measurement_fail_with_a_retryable_error(tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"items": 1, "scorer": "numeric_match"}
    item = BenchmarkItem(id="a", scenario="rule_scoring", case="a", repetition=0, parameters=parameters)
    with RedisServer(tmp_path / "redis") as server, ThreadPoolExecutor() as aside:
        fleet = Fleet(Settings(redis_url=server.url, node="node1", data_dir=tmp_path), tmp_path / "journal")
        with closing(fleet), server.client() as state:
            measured = aside.submit(Bench(fleet.core).measure, "a" * 32, item, lambda: False)
            wait_until(lambda: state.exists(keys.benchmark_jobs("a" * 32)), "it is started")
            server.stop()
            with pytest.raises(RedisUnavailable):
                measured.result(PATIENCE_S)


def test_a_removed_scenario_fails_its_own_cases_only(fleet: Fleet) -> None:
    item = BenchmarkItem(id="gone/x/0", scenario="gone", case="x", repetition=0, parameters={})
    with pytest.raises(Exception, match="The scenario 'gone' no longer exists"):
        Bench(fleet.core).measure("a" * 32, item, lambda: False)


# --- the schedule ---


def test_two_beats_start_a_due_run_once(fleet: Fleet, lab: Lab, state: Redis) -> None:
    settings = fleet.settings.model_copy(update={"benchmarks": "rule_scoring=* * * * *"})
    for _ in range(2):
        app = create_celery(settings)
        scheduler = app.Beat().Service(app).get_scheduler(lazy=True)
        (entry,) = (each for name, each in app.conf.beat_schedule.items() if name.startswith("benchmark"))
        scheduler.apply_async(scheduler.Entry(**entry | {"name": "due", "app": app}), advance=False)
        app.close()
    sent = [_arguments(message) for message in state.lrange("cpu\x06\x162", 0, -1)]
    assert [message["name"] for message in sent] == ["rule_scoring", "rule_scoring"]
    # A minute may have passed between the two messages: deliver the first message twice.
    hand = fleet.hire("cpu")
    for message in (sent[0], sent[0]):
        _deliver(fleet, hand, message)
    (run,) = lab.runs.newest(10)
    assert (run.trigger, run.name) == ("schedule", "rule_scoring")
    assert lab.fleet.job(run.job).priority == "bulk"


def _arguments(message: str) -> dict[str, Any]:
    body = json.loads(base64.b64decode(json.loads(message)["body"]))
    arguments: dict[str, Any] = body[1]
    return arguments


def _deliver(fleet: Fleet, hand: Hand, arguments: dict[str, Any]) -> None:
    """Run the task as the worker that received the message."""
    app = fleet.celery
    app.runtime = fleet.runtime_of(hand)
    app.loader.import_default_modules()
    app.tasks["assay.benchmark"](**arguments)


def slot(seconds_ago: float) -> str:
    return time.strftime(SLOT, time.gmtime(time.time() - seconds_ago))


def test_a_scheduled_run_that_no_worker_starts_within_an_hour_is_skipped(lab: Lab) -> None:
    due, late = slot(3000), slot(3700)
    waits = lab.runs.schedule("rule_scoring", due, ONCE)
    assert lab.runs.get(waits.id).state == "queued"
    lab.fleet.core.cancel(waits.job)
    run = lab.runs.schedule("rule_scoring", late, ONCE)
    ended = lab.runs.get(run.id)
    assert (ended.state, ended.note) == ("skipped", f"Due at {late}, skipped: {UNBEGUN}")
    assert lab.fleet.job(run.job).state == "cancelled"
    assert [each.state for each in lab.runs.newest(10)] == ["skipped", "cancelled"]
    assert lab.runs.schedule("rule_scoring", slot(0), ONCE).state == "queued", "a skipped run does not block others"


def test_a_requested_run_that_no_worker_starts_within_an_hour_fails_with_the_reason(lab: Lab) -> None:
    run = lab.runs.start("rule_scoring", ONCE)
    lab.runs.history.change(run, created_at=run.created_at - 3700)
    ended = lab.runs.get(run.id)
    assert (ended.state, ended.note) == ("failed", f"Abandoned: {UNBEGUN}")
    assert lab.fleet.job(run.job).state == "cancelled"
    lab.runs.start("rule_scoring", ONCE)


def test_a_worker_that_starts_hours_late_does_not_begin_the_due_run(lab: Lab) -> None:
    run = lab.runs.schedule("rule_scoring", slot(7200), ONCE)
    lab.hire("cpu")
    lab.hire("benchmark")
    wait_until(lambda: lab.fleet.job(run.job).state == "cancelled", "its job is cancelled")
    ended = lab.runs.get(run.id)
    assert (ended.state, UNBEGUN in ended.note, ended.folder) == ("skipped", True, "")
    assert lab.fleet.core.state.zcard(keys.jobs()) == 1, "nothing was measured"


def test_a_due_benchmark_is_skipped_while_jobs_of_users_run(lab: Lab) -> None:
    lab.fleet.submit({"x": 1})
    run = lab.runs.schedule("rule_scoring", "2026-11-18T03:00Z", ONCE)
    assert run.state == "skipped"
    assert run.note == "Due at 2026-11-18T03:00Z, skipped: 1 job of users kept the system busy."
    assert lab.runs.schedule("rule_scoring", "2026-11-18T03:00Z", ONCE) == run
    assert lab.runs.active() is None


def test_a_user_metadata_field_named_benchmark_does_not_make_a_job_part_of_a_run(lab: Lab) -> None:
    lab.fleet.submit({"x": 1}, metadata={"benchmark": "gsm8k"})
    assert lab.runs.schedule("rule_scoring", "2026-11-18T03:00Z", ONCE).state == "skipped"


WORSE = FigureOfRun("a/b/items_s", "items/s", "higher", 1.0, 1.0, 1.0, "basis", is_regression=True)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ({"is_disturbed": True, "is_regression": False}, ["quick"]),
        ({"basis": "larger", "is_regression": False}, ["quick"]),  # a run of `full` is not compared with `quick`
        ({"is_regression": False}, []),
    ],
)
def test_a_regression_is_reported_until_the_next_undisturbed_measurement(
    fleet: Fleet, later: dict[str, Any], expected: list[str]
) -> None:
    figures, now = FigureHistory(fleet.core.state), time.time()
    figures.add("a" * 32, "quick", now, [WORSE])
    figures.add("b" * 32, "full", now + 1, [replace(WORSE, **later)])
    assert [each.benchmark for each in figures.regressions()] == expected


def test_a_regression_without_new_measurements_is_reported_for_a_month(fleet: Fleet) -> None:
    figures = FigureHistory(fleet.core.state)
    figures.add("a" * 32, "quick", time.time() - 32 * 86400, [WORSE])
    assert figures.regressions() == []


def test_a_figure_is_compared_with_its_own_history_despite_many_runs_of_other_figures(fleet: Fleet) -> None:
    figures, weekly = FigureHistory(fleet.core.state), replace(WORSE, is_regression=False)
    for week in range(5):
        figures.add(f"{week:032x}", "full", 1000.0 * week, [replace(weekly, value=float(week))])
        for hour in range(168):
            run = f"{week:016x}{hour:016x}"
            figures.add(run, "quick", 1000.0 * week + hour, [replace(weekly, basis="smaller")])
    assert figures.earlier(weekly.figure, weekly.basis, "a" * 32, 9000.0) == [0, 1, 2, 3, 4]


def test_adding_the_figures_of_a_run_is_idempotent(fleet: Fleet) -> None:
    figures = FigureHistory(fleet.core.state)
    figures.add("c" * 32, "quick", 1.7, [replace(WORSE, value=3.0)])
    for value in (1.0, 1.0, 2.0):
        figures.add("a" * 32, "quick", 1.7, [replace(WORSE, value=value)])
    assert sorted(figures.earlier(WORSE.figure, WORSE.basis, "b" * 32, 2.0)) == [2.0, 3.0]


def test_a_benchmarks_job_is_not_retried(lab: Lab, api: Api) -> None:
    lab.hire("benchmark")
    item: dict[str, Any] = {"id": "gone/x/0", "scenario": "gone", "case": "x", "repetition": 0, "parameters": {}}
    run = Run("a" * 32, "quick", "request", "queued", lab.runs.history.now())
    lab.runs.history.add(run)
    job = lab.fleet.core.submitter.submit(
        JobRequest(kind="benchmark", items=[item], spec={"run": run.id, "name": "quick"})
    )
    wait_until(lambda: not lab.fleet.job(job).is_active, "its job is over")
    reply = api.client.post(f"/v1/jobs/{job}/retry")
    assert is_problem(reply, 409)
    assert "Run the benchmark again instead." in reply.json["detail"]


def test_skipped_runs_do_not_evict_other_runs(lab: Lab) -> None:
    running = lab.runs.start("rule_scoring", ONCE)
    for minute in range(150):
        assert lab.runs.schedule("quick", slot(60 * minute), ONCE).state == "skipped"
    assert lab.runs.active() == lab.runs.get(running.id)
    with pytest.raises(Conflict):
        lab.runs.start("quick", ONCE)
    assert running.id in {run.id for run in lab.runs.newest(200)}
    assert len(lab.runs.newest(200)) == 101


def test_an_expired_run_is_deleted_with_its_report_and_figures(lab: Lab, state: Redis) -> None:
    core, old = lab.fleet.core, time.time() - 401 * 86400
    first = Run("a" * 32, "quick", "request", "done", old, folder="benchmark_results_1", files=("summary.txt",))
    lab.remember(first, WORSE)
    core.storage.put("benchmarks/benchmark_results_1/summary.txt", b"x")
    for number in range(MOST_RUNS):
        lab.runs.history.add(Run(f"{number:032x}", "quick", "request", "done", time.time()))
    lab.runs.start("rule_scoring", ONCE)
    with pytest.raises(StoredFileMissing):
        core.storage.read("benchmarks/benchmark_results_1/summary.txt")
    assert not [key for key in state.keys("assay:benchmark:*") if "a" * 32 in key]


def test_a_record_of_a_newer_release_is_read(fleet: Fleet, state: Redis) -> None:
    RunHistory(fleet.core.state).add(Run("a" * 32, "quick", "request", "done", 1.0))
    record = json.loads(str(state.get(keys.benchmark("a" * 32)))) | {"mood": "good"}
    state.set(keys.benchmark("a" * 32), json.dumps(record))
    assert RunHistory(fleet.core.state).get("a" * 32)


def test_a_report_is_written_after_a_short_outage_of_the_storage(lab: Lab, state: Redis) -> None:
    lab.hire("cpu")
    lab.hire("benchmark")
    folder = Path(urlsplit(lab.fleet.settings.storage_url).path) / "benchmarks"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")
    run = lab.runs.start("rule_scoring", ONCE)
    wait_until(lambda: state.exists(keys.storage_faults()), "the report cannot be written")
    folder.unlink()

    def is_done() -> bool:
        lab.fleet.tick()
        return lab.runs.get(run.id).state == "done"

    wait_until(is_done, "the report is written")


def test_finished_jobs_of_users_do_not_block_a_benchmark(lab: Lab) -> None:
    hand = lab.fleet.hire()
    lab.fleet.finish(lab.fleet.submit({"x": 1}), hand)
    assert lab.runs.schedule("rule_scoring", "2026-11-18T03:00Z", ONCE).state == "queued"


def test_a_due_benchmark_is_skipped_while_another_run_is_active(lab: Lab) -> None:
    lab.runs.start("rule_scoring", ONCE)
    run = lab.runs.schedule("quick", "2026-11-18T03:00Z", ONCE)
    assert (run.state, "was still running" in run.note) == ("skipped", True)


def test_an_interrupted_start_is_completed_by_the_next_attempt(lab: Lab) -> None:
    due = "2026-11-18T03:00Z"
    first = lab.runs.schedule("rule_scoring", due, ONCE)
    lab.runs.history.change(first, job="", total=0)  # as if the process had died before it stored the job's id
    assert lab.runs.schedule("rule_scoring", due, ONCE).job == first.job


def test_a_run_that_was_never_started_counts_as_failed_after_a_while(lab: Lab) -> None:
    history = RunHistory(lab.fleet.core.state)
    history.add(Run("b" * 32, "quick", "request", "queued", time.time() - 3600))
    assert lab.runs.active() is None
    assert lab.runs.get("b" * 32).state == "failed"


# --- over HTTP ---


def test_a_run_is_started_listed_and_read_over_http(lab: Lab, api: Api) -> None:
    lab.hire("cpu")
    lab.hire("benchmark")
    reply = api.client.post("/v1/benchmarks/rule_scoring/runs", json={"repetitions": 1})
    assert reply.status_code == 202
    path = reply.headers["Location"]
    wait_until(lambda: api.client.get(path).json["state"] == "done", "it is done")
    run = api.client.get(path).json
    assert {figure["figure"] for figure in run["figures"]} >= {NAME}
    report = api.client.get(f"{path}/files/performance_report.md")
    assert report.mimetype == "text/markdown"
    assert "# Benchmark `rule_scoring`" in report.text
    assert api.client.get(f"{path}/files/rule_scoring.png").mimetype == "image/png"
    assert [each["id"] for each in api.client.get("/v1/benchmarks/runs").json["runs"]] == [run["id"]]
    assert api.client.get("/v1/benchmarks/runs?name=quick").json["runs"] == []
    rows = {each["name"]: each for each in api.client.get("/v1/benchmarks").json["benchmarks"]}
    assert rows["rule_scoring"]["last_run"]["id"] == run["id"]
    assert rows["quick"]["schedule"] == "0 3 * * *"
    assert rows["quick"]["next_at"] > run["ended_at"]


def test_a_benchmark_with_two_crontabs_shows_both_and_the_next_time(fleet: Fleet) -> None:
    fleet.settings = fleet.settings.model_copy(update={"benchmarks": "quick=0 * * * *; quick=0 0 1 1 *"})
    rows = {each["name"]: each for each in Api(fleet).client.get("/v1/benchmarks").json["benchmarks"]}
    assert rows["quick"]["schedule"] == "0 * * * *; 0 0 1 1 *"
    assert rows["quick"]["next_at"] - time.time() < 3700


def test_unknown_benchmarks_runs_and_options_are_refused(api: Api) -> None:
    assert is_problem(api.client.post("/v1/benchmarks/nothing/runs"), 404)
    assert is_problem(api.client.get("/v1/benchmarks/runs/" + "0" * 32), 404)
    assert is_problem(api.client.get("/v1/benchmarks/runs/../../etc"), 404)
    assert is_problem(api.client.post("/v1/benchmarks/quick/runs", json={"repetitions": 0}), 422, "repetitions")
    for name in ("model", "profile"):
        assert is_problem(api.client.post("/v1/benchmarks/quick/runs", json={name: "nothing"}), 422, name)
    assert is_problem(api.client.post("/v1/benchmarks/quick/runs", data="x", content_type="application/json"), 400)


def test_only_files_listed_by_the_run_are_served(api: Api) -> None:
    api.fleet.core.storage.put("benchmarks/somewhere/secret.txt", b"x")
    run = Run("c" * 32, "quick", "request", "done", time.time(), folder="somewhere", files=("summary.txt",))
    RunHistory(api.fleet.core.state).add(run)
    for name in ("secret.txt", "summary.txt", "..%2Fsecret.txt"):
        assert is_problem(api.client.get(f"/v1/benchmarks/runs/{run.id}/files/{name}"), 404)


def test_a_benchmark_is_not_submitted_as_a_job(api: Api) -> None:
    item = {"id": "a", "scenario": "rule_scoring", "case": "x", "repetition": 0, "parameters": {}}
    reply = api.submit(item, kind="benchmark", spec={"run": "d" * 32, "name": "quick"})
    assert is_problem(reply, 422, "kind")
