"""Score jobs of trainers' requests: a job of interactive priority per request, for which the request waits.

The job passes the same validation, quotas and backlog limit as any job, and is listed among them. It is cancelled when
the trainer disconnects, or when the time for the response is up.
"""

import time
from collections.abc import Sequence
from typing import Any

from flask import request

from config.rewards import Reward
from tasks.jobs.model import Fill, JobRequest
from web.http.http_error import HttpError, too_large
from web.http.long_polling import is_gone, wait
from web.http.quotas import Admission
from web.jobs.submission import check_sizes, submit_within_quotas
from web.rewards.named_rewards import KIND
from web.rewards.requests import Item
from web.services import services

#: TTL of trainers' jobs after their end, in seconds: a trainer creates a job for every few samples.
JOB_TTL_S = 3600.0

Row = dict[str, Any]


def score_items(reward: Reward, items: Sequence[Item], body_bytes: int, place: str, answer_s: float) -> list[Row]:
    """Score the items with a named reward and return a row for each. See `run_job`."""
    answer_s = min(answer_s, services().settings.max_wait_s)
    job = JobRequest(
        kind=KIND,
        spec=reward.spec,
        items=list(items),
        priority="interactive",
        on_error=Fill(fill=reward.fill),
        deadline_s=max(answer_s, 1.0),
        metadata={"reward": reward.name, "path": request.path},
    )
    return run_job(job, body_bytes, place, answer_s)[1]


def run_job(job: JobRequest, body_bytes: int, place: str, answer_s: float) -> tuple[str, list[Row]]:
    """Run the job within `answer_s` seconds. Return its id, and a row for each item in order. Items that are unfinished
    by then have failed, and are cancelled.

    `place` is the trainer's name for an item. Raises HttpError when no thread may wait, or this process stops.
    """
    started = time.monotonic()
    max_items = services().settings.max_items
    if len(job.items) > max_items:
        raise too_large(
            f"{len(job.items):,} samples exceed the limit of a request ({max_items:,}, ASSAY_MAX_ITEMS): send fewer."
        )
    check_sizes(job, body_bytes, place)

    def submit(admission: Admission, owner: str) -> str:
        admission.items = len(job.items)
        return services().core.submitter.submit(job, token=owner, keep_s=JOB_TTL_S)

    long_requests = services().long_requests
    if not long_requests.take():
        raise _busy(f"{long_requests.total} requests wait already, the limit of this process: try again.")
    try:
        job_id = submit_within_quotas(submit)
        return job_id, _rows(job_id, answer_s - (time.monotonic() - started))
    finally:
        long_requests.give_back()


def _rows(job_id: str, seconds: float) -> list[Row]:
    core, client = services().core, request.environ.get("gunicorn.socket")
    job = wait(job_id, seconds, is_wanted=lambda: not is_gone(client))
    if job.is_active:
        core.cancel(job_id)
        job = core.store.job(job_id)
        if not services().long_requests.is_serving():
            raise _busy("This process is stopping: try again.")
    return list(core.results.read(job))


def _busy(detail: str) -> HttpError:
    return HttpError(503, "busy", "Busy", detail, headers={"Retry-After": "1"})
