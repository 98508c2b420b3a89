"""Jobs: submit, list, look, cancel, retry, pause and resume."""

from flask import Blueprint, Response

from tasks.errors import UnknownJob
from tasks.jobs.model import JOB_ID, Job
from web import submission
from web.answers import MOST_ROWS, answer, encode, job_view, rows, with_rows
from web.description import described, read_query
from web.schemas import JobAnswer, JobPage, JobView, LinesQuery, ListQuery, RetriedJob
from web.services import services
from web.waiting import wait

blueprint = Blueprint("jobs", __name__, url_prefix="/v1/jobs")


def find(job_id: str) -> Job:
    """Raises UnknownJob. Only names that could be one reach Redis, where they become part of a key."""
    if not JOB_ID.fullmatch(job_id):
        raise UnknownJob(f"There is no job {job_id[:64]!r}; it may have expired.")
    return services().core.store.job(job_id)


@blueprint.post("")
@described(
    "Submit a job; with `wait`, its results come with the answer if they are ready in time.",
    {200: JobAnswer, 202: JobAnswer},
    query=LinesQuery,
    errors=(400, 408, 409, 413, 415, 422, 429),
    headers={"Idempotency-Key": "A repeat with the same key and body answers with the same job."},
    has_body=True,
)
def submit() -> Response:
    query = read_query(LinesQuery)
    job = _wait(submission.accept(query), min(query.wait, services().settings.max_wait_s))
    response = _with_results(job, 202 if job.is_active else 200)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return response


@blueprint.get("")
@described("List jobs, newest first.", {200: JobPage}, query=ListQuery, errors=(422,))
def listing() -> Response:
    query = read_query(ListQuery)
    page = services().jobs.page(query.kind, query.state, query.limit, query.cursor)
    return answer({"jobs": [job_view(job) for job in page.jobs], "next": page.next})


@blueprint.get("/<job_id>")
@described("Look at a job: state, counts, rate, time left, who did what.", {200: JobView}, errors=(404,))
def look(job_id: str) -> Response:
    return answer(job_view(find(job_id)))


@blueprint.delete("/<job_id>")
@described("Cancel a job. What is done stays readable; to cancel again changes nothing.", {200: JobView}, errors=(404,))
def cancel(job_id: str) -> Response:
    services().core.cancel(find(job_id).id)
    return answer(job_view(find(job_id)))


@blueprint.post("/<job_id>/retry")
@described("Run again what failed, in a job that has ended.", {200: RetriedJob}, errors=(404, 409))
def retry(job_id: str) -> Response:
    retried = services().core.retry_failed(find(job_id).id)
    return answer(job_view(find(job_id)) | {"retried": retried})


@blueprint.post("/<job_id>/pause")
@described("Hold a job back. What runs is finished.", {200: JobView}, errors=(404, 409))
def pause(job_id: str) -> Response:
    services().core.pause(find(job_id).id)
    return answer(job_view(find(job_id)))


@blueprint.post("/<job_id>/resume")
@described("Let a paused job go on.", {200: JobView}, errors=(404, 409))
def resume(job_id: str) -> Response:
    services().core.resume(find(job_id).id)
    return answer(job_view(find(job_id)))


def _wait(job_id: str, seconds: float) -> Job:
    """The job when it is over, or when the time is up. Where too many wait already, nobody waits."""
    seats = services().seats
    if not seconds or not seats.take():
        return services().core.store.job(job_id)
    try:
        return wait(job_id, seconds)
    finally:
        seats.give_back()


def _with_results(job: Job, status: int) -> Response:
    if job.is_active or job.total > MOST_ROWS:
        return Response(encode(job_view(job)), status, mimetype="application/json")
    return with_rows(job_view(job), rows(job, 0, None), status)
