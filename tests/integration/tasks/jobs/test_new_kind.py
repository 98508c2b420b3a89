"""A job kind defined only in this module: one line registers it, and its jobs run, are cached and explained."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

from config.settings import Settings
from tasks.errors import Conflict, Permanent, UnknownKind
from tasks.jobs.kind import Kind
from tasks.jobs.model import JobRequest, Result, StageLimits
from tasks.jobs.stage import BatchStage, Context, Key, Stage, Work
from tasks.kinds import KINDS
from tasks.runtime import Resource
from tests.support.fleet import Fleet

TABLE = Resource[dict[str, str]]("table", lambda worker: Permanent(f"{worker} holds no table."))


class ToySpec(BaseModel):
    factor: int = 2
    looks_up: bool = False


class ToyItem(BaseModel):
    id: str | None = None
    x: int


class TimesStage(BatchStage[ToyItem]):
    def __init__(self, spec: ToySpec) -> None:
        super().__init__("times", "cpu", StageLimits(batch_items=2))
        self._spec = spec

    def key(self, work: Work[ToyItem]) -> Key:
        return {"x": work.item.x, "factor": self._spec.factor}

    def run(self, context: Context, batch: Sequence[Work[ToyItem]]) -> Sequence[Result]:
        if self._spec.looks_up:
            context.get(TABLE)
        return [Result(score=float(work.item.x * self._spec.factor)) for work in batch]


class Toy(Kind[ToySpec, ToyItem]):
    name = "toy"
    spec_model = ToySpec
    item_model = ToyItem
    retry_refusal = "Toys are not mended."

    def stages(self, spec: ToySpec) -> Sequence[Stage[ToyItem]]:
        return [TimesStage(spec)]


@pytest.fixture
def toys(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(settings, tmp_path / "journal", kinds=(*KINDS, Toy.create))
    yield fleet
    fleet.close()


def submit(fleet: Fleet, *numbers: int, **spec: object) -> str:
    items = [{"id": f"n{x}", "x": x} for x in numbers]
    fleet.core.dispatcher.forget_fleet()
    return fleet.core.submitter.submit(JobRequest(kind="toy", items=items, spec=dict(spec)))  # type: ignore[arg-type]


def test_one_line_registers_a_kind_and_its_jobs_run(toys: Fleet) -> None:
    hand = toys.hire("cpu")
    job = toys.finish(submit(toys, 1, 2, 3, factor=5), hand)
    assert (job.kind, job.state, job.ok, job.cached) == ("toy", "done", 3, 0)
    assert [row["score"] for row in toys.rows(job.id)] == [5.0, 10.0, 15.0]


def test_answers_of_a_new_kind_are_cached_and_explained_by_the_core(toys: Fleet) -> None:
    hand = toys.hire("cpu")
    toys.finish(submit(toys, 1, 2, factor=5), hand)
    again = toys.job(submit(toys, 1, 2, factor=5))
    assert (again.state, again.cached) == ("done", 2)
    (stage,) = toys.core.explain(again.id, 0)["stages"]
    assert (stage["stage"], stage["key"]) == ("times", {"x": 1, "factor": 5})


def test_a_kind_can_refuse_the_retry_of_its_jobs(toys: Fleet) -> None:
    job = toys.finish(submit(toys, 1), toys.hire("cpu"))
    with pytest.raises(Conflict, match="Toys are not mended"):
        toys.core.retry_failed(job.id)


def test_a_worker_without_its_resource_fails_its_items_with_the_resources_own_error(toys: Fleet) -> None:
    job = toys.finish(submit(toys, 1, looks_up=True), toys.hire("cpu"))
    assert job.failed == 1
    assert "cpu.node1.0 holds no table." in toys.rows(job.id)[0]["error"]["message"]


def test_without_registration_the_kind_is_unknown(fleet: Fleet) -> None:
    with pytest.raises(UnknownKind, match="There is no job kind 'toy'"):
        submit(fleet, 1)
