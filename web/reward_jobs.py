"""From samples to the rows of their outcomes, while a trainer waits: one score job a request, of interactive priority.

It passes the same door, quotas and backlog as any job, and is listed among them. Nobody works for a trainer that has
left, or that has been answered.
"""

import time
from collections.abc import Sequence
from typing import Any

from flask import request

from config.rewards import Reward
from tasks.jobs.core import JobCore
from tasks.jobs.model import Fill, JobRequest
from tasks.jobs.submit import Door
from web.quotas import Admission
from web.refusal import Refused, too_large
from web.rewards import KIND
from web.samples import Item
from web.services import services
from web.submission import admitted, check_sizes
from web.waiting import is_gone, wait

#: Seconds that the jobs of trainers are kept when they have ended: there is one for every few samples.
KEPT_S = 3600.0

Row = dict[str, Any]


def create_door(core: JobCore) -> Door:
    """The core's door, with another lifetime for what comes in by it."""
    settings = core.settings
    return Door(
        core.state, core.payloads, core.storage, core.ledger, core.cache, core.kinds, core.registry, core.dispatcher,
        min(KEPT_S, settings.job_ttl_s), settings.idempotency_ttl_s, settings.stored_items,
    )  # fmt: skip


def rewarded(reward: Reward, items: Sequence[Item], body_bytes: int, place: str, answer_s: float) -> list[Row]:
    """A row for each item by a named reward, as `outcomes`."""
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
    return outcomes(job, body_bytes, place, answer_s)[1]


def outcomes(job: JobRequest, body_bytes: int, place: str, answer_s: float) -> tuple[str, list[Row]]:
    """The job's id, and a row for each item, in order, within `answer_s`; what is not done by then has failed, and is
    given up.

    `place` is how the trainer calls an item. Raises Refused when no thread may wait, or this process is to stop.
    """
    started = time.monotonic()
    most = services().settings.max_items
    if len(job.items) > most:
        raise too_large(f"{len(job.items):,} samples are more than a request may have ({most:,}, ASSAY_MAX_ITEMS).")
    check_sizes(job, body_bytes, place)

    def submit(admission: Admission, owner: str) -> str:
        admission.items = len(job.items)
        return services().reward_door.submit(job, token=owner)

    seats = services().seats
    if not seats.take():
        raise _busy(f"{seats.total} requests wait already, all that this process has threads for: try again.")
    try:
        job_id = admitted(submit)
        return job_id, _rows(job_id, answer_s - (time.monotonic() - started))
    finally:
        seats.give_back()


def _rows(job_id: str, seconds: float) -> list[Row]:
    core, client = services().core, request.environ.get("gunicorn.socket")
    job = wait(job_id, seconds, is_wanted=lambda: not is_gone(client))
    if job.is_active:
        core.cancel(job_id)
        job = core.store.job(job_id)
        if not services().seats.is_serving():
            raise _busy("This process is about to stop: try again.")
    return list(core.results.read(job))


def _busy(detail: str) -> Refused:
    return Refused(503, "busy", "Busy", detail, headers={"Retry-After": "1"})
