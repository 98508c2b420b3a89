"""Benchmark runs with real processes: a killed worker, a restart of Redis, and beat."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from config.profiles import load_profiles
from tasks.deployment_benchmarks.model import RunOptions
from tasks.deployment_benchmarks.runs import Runs
from tests.end_to_end.system import System
from tests.support.programs import PATIENCE_S, Program, wait_until


@pytest.fixture
def runs(system: System) -> Runs:
    return Runs(system.core, load_profiles(system.settings))


def test_a_run_survives_the_death_of_its_worker(system: System, runs: Runs) -> None:
    system.launch("benchmark")
    run = runs.start("inference_shards", RunOptions(repetitions=1))
    # The launcher starts the worker when a run waits.
    wait_until(lambda: system.core.registry.get("benchmark.node1.0") is not None, "the benchmark worker is registered")
    wait_until(lambda: bool(_measured_jobs(system)), "a measured job runs")
    (left,) = _measured_jobs(system)
    os.kill(system.children("benchmark")[0].pid, signal.SIGKILL)
    wait_until(lambda: runs.get(run.id).state == "done", "the run is done", 2 * PATIENCE_S)
    done = runs.get(run.id)
    assert (done.note, done.total, len({each.figure.split("/")[1] for each in runs.figures.of_run(run.id)})) == (
        "",
        2,
        2,
    )
    assert not system.job(left).is_active, "the job of the killed process was not cancelled"
    results = json.loads(system.core.storage.read(f"benchmarks/{done.folder}/results.json"))
    assert [each["error"] for each in results["measurements"]] == [None, None]


def test_a_run_survives_a_restart_of_redis(system: System, runs: Runs) -> None:
    system.launch("benchmark")
    run = runs.start("inference_shards", RunOptions(repetitions=1))
    wait_until(lambda: bool(_measured_jobs(system)), "a measured job runs")
    system.state.stop(signal.SIGKILL)
    time.sleep(0.3)
    system.state.start()
    wait_until(lambda: runs.get(run.id).state == "done", "the run is done", 2 * PATIENCE_S)
    done = runs.get(run.id)
    results = json.loads(system.core.storage.read(f"benchmarks/{done.folder}/results.json"))
    assert (done.note, [each["error"] for each in results["measurements"]]) == ("", [None, None])


def _measured_jobs(system: System) -> list[str]:
    found = (system.core.store.job(str(job)) for job in system.core.state.zrange("assay:jobs", 0, -1))
    return [job.id for job in found if job.kind == "simulated" and job.is_active]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_beats_start_a_due_run_once(system: System, runs: Runs, tmp_path: Path) -> None:
    schedule = {"ASSAY_BENCHMARKS": "rule_scoring=* * * * *"}
    for number in (1, 2):
        system.launch("beat", ASSAY_NODE=f"node{number}", ASSAY_DATA_DIR=str(tmp_path / f"beat{number}"), **schedule)
    system.launch("benchmark")
    wait_until(lambda: sum(run.state == "done" for run in runs.newest(10)) >= 2, "two runs are done", 1000)
    found = runs.newest(10)
    assert {run.trigger for run in found} == {"schedule"}
    minutes = [int(run.created_at // 60) for run in found]
    assert len(set(minutes)) == len(minutes), "a minute has more than one run"


def test_a_schedule_with_an_unknown_benchmark_is_refused(run: Callable[..., Program], redis_url: str) -> None:
    beat = run("python", "-m", "workers.launch", "beat", ASSAY_REDIS_URL=redis_url, ASSAY_BENCHMARKS="slow=0 3 * * *")
    assert beat.wait() == 78
    assert "Unknown benchmark 'slow'" in beat.output
