"""`/v1/jobs`: submit, list, read, cancel, retry, repair, pause and resume jobs."""

from flask import Blueprint, Response

from tasks.errors import UnknownJob
from tasks.jobs.model import JOB_ID, Job
from web.http.json_responses import encode, json_response
from web.http.long_polling import wait
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.jobs import submission
from web.jobs.job_responses import MAX_ROWS, job_view, rows, with_rows
from web.jobs.schemas import (
    CancelQuery,
    JobListQuery,
    JobPage,
    JobView,
    JobWithResults,
    RepairedJob,
    RetriedJob,
    SubmitQuery,
)
from web.services import services

blueprint = Blueprint("jobs", __name__, url_prefix="/v1/jobs")


def find(job_id: str) -> Job:
    """Read the job. Raises UnknownJob. A text that is not a job id never becomes part of a Redis key."""
    if not JOB_ID.fullmatch(job_id):
        raise UnknownJob(f"Job {job_id[:64]!r} does not exist, or has expired.")
    return services().core.store.job(job_id)


@blueprint.post("")
@described(
    "Submit a job; with `wait`, the response has its results if they are ready in time.",
    {200: JobWithResults, 202: JobWithResults},
    query=SubmitQuery,
    errors=(400, 408, 409, 413, 415, 422, 429),
    headers={"Idempotency-Key": "A retry with the same key and body returns the same job."},
    has_body=True,
)
def submit() -> Response:
    query = read_query(SubmitQuery)
    job = _wait(submission.accept(query), min(query.wait, services().settings.max_wait_s))
    response = _with_results(job, 202 if job.is_active else 200)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return response


@blueprint.get("")
@described("List jobs, newest first.", {200: JobPage}, query=JobListQuery, errors=(422,))
def listing() -> Response:
    query = read_query(JobListQuery)
    page = services().jobs.page(query.kind, query.state, query.limit, query.cursor)
    return json_response({"jobs": [job_view(job) for job in page.jobs], "next": page.next})


@blueprint.get("/<job_id>")
@described("Read a job: state, counts, throughput, remaining time, work of each worker.", {200: JobView}, errors=(404,))
def look(job_id: str) -> Response:
    return json_response(job_view(find(job_id)))


@blueprint.delete("/<job_id>")
@described(
    "Cancel a job. Its results so far stay readable; with `purge`, the job and its results are deleted.",
    {200: JobView},
    query=CancelQuery,
    errors=(404, 422),
)
def cancel(job_id: str) -> Response:
    purges = read_query(CancelQuery).purge
    services().core.cancel(find(job_id).id)
    view = job_view(find(job_id))
    if purges:
        services().core.purge(job_id)
    return json_response(view)


@blueprint.post("/<job_id>/repair")
@described(
    "Check a job that stands still, and repair it: items that nothing would run are pending again, and an interrupted "
    "retry is completed. Workers do this by themselves every few seconds; a sound job is not changed.",
    {200: RepairedJob},
    errors=(404,),
)
def repair(job_id: str) -> Response:
    repaired = services().core.repair(find(job_id).id)
    return json_response(job_view(find(job_id)) | {"repaired": repaired})


@blueprint.post("/<job_id>/retry")
@described("Retry the failed items of a job that has ended.", {200: RetriedJob}, errors=(404, 409))
def retry(job_id: str) -> Response:
    retried = services().core.retry_failed(find(job_id).id)
    return json_response(job_view(find(job_id)) | {"retried": retried})


@blueprint.post("/<job_id>/pause")
@described("Pause a job. Its running chunks finish.", {200: JobView}, errors=(404, 409))
def pause(job_id: str) -> Response:
    services().core.pause(find(job_id).id)
    return json_response(job_view(find(job_id)))


@blueprint.post("/<job_id>/resume")
@described("Resume a paused job.", {200: JobView}, errors=(404, 409))
def resume(job_id: str) -> Response:
    services().core.resume(find(job_id).id)
    return json_response(job_view(find(job_id)))


def _wait(job_id: str, seconds: float) -> Job:
    """Return the job when it has ended or the time is up; at once when too many requests wait already."""
    long_requests = services().long_requests
    if not seconds or not long_requests.take():
        return services().core.store.job(job_id)
    try:
        return wait(job_id, seconds)
    finally:
        long_requests.give_back()


def _with_results(job: Job, status: int) -> Response:
    if job.is_active or job.total > MAX_ROWS:
        return Response(encode(job_view(job)), status, mimetype="application/json")
    return with_rows(job_view(job), rows(job, 0, None), status)
