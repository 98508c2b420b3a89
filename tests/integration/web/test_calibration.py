"""Calibration of a judge against human labels, over HTTP, with the development API's predictable scores."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from config.profiles import Profile, Profiles
from tasks.jobs.execution.runner import RUNNER
from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet, Hand
from tests.support.judge_api import JudgeApi
from tests.support.programs import Program
from workers.worker.runtime import ProcessRuntime

#: The development API gives the highest score to a response that contains its reference, and otherwise the lowest.
RIGHT, WRONG = {"response": "It is 5.", "reference": "5"}, {"response": "It is 6.", "reference": "5"}
REFERENCE = {"profile": "main", "mode": "reference"}


class Judging:
    """The application with an API worker and a CPU worker that the test runs step by step."""

    def __init__(self, fleet: Fleet, judge_api: JudgeApi, folder: Path) -> None:
        self.judge_api, url = judge_api, judge_api.url
        file = folder / "profiles.toml"
        file.write_text(f'[profiles.main]\nbase_url = "{url}"\nmodels = ["development"]\n')
        fleet.settings = fleet.settings.model_copy(
            update={"profiles_file": file, "stored_items": 50, "storage_shared": True, "heartbeat_ttl_s": 600.0}
        )
        self.fleet, self.api = fleet, Api(fleet)
        hand, self.cpu = fleet.hire("api"), fleet.hire("cpu")
        profiles = Profiles(Profile(name="main", base_url=url, models=("development",)))
        self.runtime = ProcessRuntime(hand.worker, hand.core, profiles)
        self.hand = Hand(hand.worker, hand.core, self.runtime.get(RUNNER))

    def submit(self, *items: dict[str, Any], **spec: Any) -> str:
        return self.api.submitted(*items, kind="judge", spec=REFERENCE | spec)

    def done(self, *items: dict[str, Any], **spec: Any) -> str:
        job = self.submit(*items, **spec)
        self.work(job)
        return job

    def work(self, job: str) -> None:
        self.fleet.finish(job, self.hand, self.cpu)

    def calibration(self, job: str) -> Any:
        return self.api.client.get(f"/v1/jobs/{job}/calibration")


@pytest.fixture
def judging(fleet: Fleet, run: Callable[..., Program], tmp_path: Path) -> Iterator[Judging]:
    with JudgeApi(run) as judge_api:
        judging = Judging(fleet, judge_api, tmp_path)
        yield judging
        judging.runtime.close()


def test_a_judge_is_compared_with_the_labels(judging: Judging) -> None:
    labelled = [RIGHT | {"label": 10}, RIGHT | {"label": 1, "prompt": "?"}, WRONG | {"label": 1}]
    lacking = {"response": "5", "label": 3}  # without a reference the item fails
    job = judging.done(*labelled, WRONG | {"label": 11}, WRONG, lacking)
    found = judging.calibration(job).json
    assert (found["job"], found["state"], found["total"], found["pending"]) == (job, "done", 6, 0)
    assert (found["n"], found["off_scale"], found["without_label"], found["without_score"]) == (3, 1, 1, 1)
    # Two of three labels agree; by chance the expected share is four of nine.
    assert (found["agreement"], found["kappa"]) == (pytest.approx(2 / 3), pytest.approx(0.4))
    assert (found["mean_error"], found["pearson"]) == (pytest.approx(3.0), pytest.approx(0.5))
    assert found["position"] == {"first_wins": None, "verdicts": 0, "orders_disagree": None}


def test_a_judge_with_position_bias_is_detected(judging: Judging) -> None:
    judging.judge_api.set(share_first=1.0)
    pairs = [{"response": f"It is {n}.", "rival": "It is not.", "label": "response"} for n in range(4)]
    found = judging.calibration(judging.done(*pairs, mode="pairwise")).json
    assert found["position"] == {"first_wins": 1.0, "verdicts": 8, "orders_disagree": 1.0}
    assert found["agreement"] == 0.0, "the orders disagree, which is a tie"


def test_a_running_job_is_calibrated_by_its_finished_items(judging: Judging) -> None:
    known = [RIGHT | {"label": 10}, WRONG | {"label": 1}]
    judging.done(*known)
    job = judging.submit(*known, {"response": "It is 7.", "reference": "7", "label": 10})
    found = judging.calibration(job).json
    assert (found["state"], found["total"], found["n"], found["pending"]) == ("queued", 3, 2, 1)
    assert found["agreement"] == 1.0
    judging.work(job)
    found = judging.calibration(job).json
    assert (found["state"], found["n"], found["pending"]) == ("done", 3, 0)


def test_a_job_without_a_judged_item_has_undefined_figures(judging: Judging) -> None:
    found = judging.calibration(judging.submit(RIGHT | {"label": 10})).json
    assert (found["n"], found["pending"], found["agreement"], found["kappa"]) == (0, 1, None, None)


def test_a_large_job_is_calibrated_from_the_storage(judging: Judging) -> None:
    items = [
        {"response": f"It is {n}.", "reference": str(n + n % 2), "label": 10 if n % 4 < 2 else 1} for n in range(120)
    ]
    job = judging.done(*items)
    assert judging.fleet.job(job).layout.is_stored
    found = judging.calibration(job).json
    # Even numbers contain their reference, and the first two of every four are labelled 10: half agree, as by chance.
    assert (found["n"], found["agreement"], found["kappa"]) == (120, 0.5, pytest.approx(0.0))


def test_a_job_that_cannot_be_calibrated_is_a_problem(judging: Judging) -> None:
    assert is_problem(judging.calibration("0" * 32), 404)
    other = judging.calibration(judging.api.submitted({"x": 1}))
    assert is_problem(other, 409)
    assert other.json["detail"] == "The job's kind is 'simulated': calibration needs a job of kind 'judge'."
    bare = judging.calibration(judging.submit(RIGHT))
    assert is_problem(bare, 409)
    assert bare.json["detail"].startswith("No item of the job has a label")
    off = judging.calibration(judging.submit(RIGHT | {"label": "good"}, RIGHT | {"label": 11}))
    assert is_problem(off, 409)
    assert off.json["detail"].startswith("The 2 labels are not on the scale")
