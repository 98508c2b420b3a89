"""How far the judge of a job can be trusted: its scores beside the labels of its items."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from flask import Blueprint, Response

from config import keys
from tasks import quick_json
from tasks.errors import Conflict, UnknownJob
from tasks.jobs.model import Job
from tasks.judging.calibration import categories, collect, report
from tasks.judging.model import JudgeItem, JudgeSpec
from web.answers import answer
from web.description import described
from web.jobs import find
from web.schemas import CalibrationView
from web.services import services

blueprint = Blueprint("calibration", __name__, url_prefix="/v1/jobs")

#: Items and outcomes held at a time; what stays of each is a few numbers.
PAGE = 500


@blueprint.get("/<job_id>/calibration")
@described(
    "Compare a judge job's scores with the labels of its items; while it runs, of those that have an outcome.",
    {200: CalibrationView},
    errors=(404, 409),
)
def calibration(job_id: str) -> Response:
    job = find(job_id)
    if job.kind != "judge":
        raise Conflict(f"The job's kind is {job.kind}: only a judge can be calibrated.")
    spec = _spec(job)
    judged = collect(spec, _items(job))
    if all(each.label is None for each in judged):
        off = sum(each.is_off_scale for each in judged)
        raise Conflict(
            f"None of the {off} labels has a place on the scale that was judged on: there is nothing to compare with."
            if off
            else "No item of the job has a label: give items a `label`, which is what a person said of them."
        )
    head = {"job": job.id, "state": job.state, "total": job.total}
    return answer(head | report(judged, categories(spec)))


def _spec(job: Job) -> JudgeSpec:
    text = services().state.hget(keys.job(job.id), "spec")
    if not text:
        raise UnknownJob(f"There is no job {job.id!r}; it may have expired.")
    return JudgeSpec.model_validate_json(str(text))


def _items(job: Job) -> Iterator[tuple[JudgeItem, dict[str, Any] | None]]:
    """All items, each with its outcome if it has one."""
    core = services().core
    lines = core.outcomes.lines(job, job.trimmed, job.total)
    while page := list(islice(lines, PAGE)):
        payloads = core.payloads.read(job.id, job.layout, [index for index, _ in page])
        if len(payloads) < len(page):
            find(job.id)  # expired while it is read
        for index, line in page:
            if index in payloads:
                yield JudgeItem.model_validate(payloads[index]), quick_json.read(line) if line else None
