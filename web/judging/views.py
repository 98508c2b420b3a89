"""`/v1/jobs/{id}/calibration`: compares the scores of a judge with the labels that people gave its items."""

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
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.jobs.views import find
from web.judging.schemas import CalibrationView
from web.services import services

blueprint = Blueprint("calibration", __name__, url_prefix="/v1/jobs")

#: Items and outcomes held in memory at a time; only a few numbers of each are kept.
PAGE = 500


@blueprint.get("/<job_id>/calibration")
@described(
    "Compare a judge job's scores with the labels of its items; while it runs, for the items with an outcome.",
    {200: CalibrationView},
    errors=(404, 409),
)
def calibration(job_id: str) -> Response:
    job = find(job_id)
    if job.kind != "judge":
        raise Conflict(f"The job's kind is {job.kind!r}: calibration needs a job of kind 'judge'.")
    spec = _spec(job)
    judged = collect(spec, _items(job))
    if all(each.label is None for each in judged):
        off = sum(each.is_off_scale for each in judged)
        raise Conflict(
            f"The {off} labels are not on the scale of the judge: give labels that its rubric has."
            if off
            else "No item of the job has a label: give items a `label`, the verdict of a person."
        )
    head = {"job": job.id, "state": job.state, "total": job.total}
    return json_response(head | report(judged, categories(spec)))


def _spec(job: Job) -> JudgeSpec:
    text = services().state.hget(keys.job_definition(job.id), "spec")
    if not text:
        raise UnknownJob(f"Job {job.id!r} does not exist, or has expired.")
    return JudgeSpec.model_validate_json(str(text))


def _items(job: Job) -> Iterator[tuple[JudgeItem, dict[str, Any] | None]]:
    """Yield every item, with its outcome if it has any."""
    core = services().core
    lines = core.outcomes.lines(job, job.trimmed, job.total)
    while page := list(islice(lines, PAGE)):
        payloads = core.payloads.read(job.id, job.layout, [index for index, _ in page])
        if len(payloads) < len(page):
            find(job.id)  # raises if the job expired meanwhile
        for index, line in page:
            if index in payloads:
                yield JudgeItem.model_validate(payloads[index]), quick_json.read(line) if line else None
