"""Rollouts: make one, look at it, hold it, end it. Its samples and versions have modules of their own."""

import json
from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, request

from tasks.errors import Conflict, InvalidLine, UnknownJob
from tasks.jobs.model import Job
from tasks.jobs.upload import as_lines
from tasks.rollouts.rollouts import Held
from tasks.rollouts.versions import SyncStatus
from web import multipart
from web.answers import answer, job_view
from web.bodies import Body
from web.description import described, read_query
from web.jobs import find
from web.json_bodies import parsed, read_json, require_finite
from web.lines import Lines
from web.quotas import Admission
from web.refusal import too_large
from web.rollout_schemas import Batches, Holding, HoldQuery, RolloutHead, RolloutRequest, RolloutStatistics, RolloutView
from web.services import services
from web.submission import MOST_METADATA_BYTES, MOST_SPEC_BYTES, PARTS, admitted, idempotency_key
from web.waiting import poll

blueprint = Blueprint("rollouts", __name__, url_prefix="/v1/rollouts")


def find_rollout(rollout_id: str) -> Job:
    job = find(rollout_id)
    if job.kind != "rollout":
        raise UnknownJob(f"The job {job.id!r} is of kind {job.kind!r}, not a rollout.")
    return job


def find_active(rollout_id: str) -> str:
    """The id of one that is not over."""
    job = find_rollout(rollout_id)
    if not job.is_active:
        raise Conflict(f"The rollout is {job.state}.")
    return job.id


@blueprint.post("")
@described(
    "Make a rollout: prompts generated, rewarded and queued while a trainer takes samples. Without a model it is a "
    "sample queue alone. Prompts come with the JSON, or as JSONL in a part `items` after a part `request`.",
    {202: RolloutView},
    errors=(400, 408, 409, 413, 415, 422, 429),
    headers={"Idempotency-Key": "A repeat with the same key and body answers with the same rollout."},
    body=RolloutRequest,
)
def create() -> Response:
    key = idempotency_key()

    def submit(admission: Admission, owner: str) -> str:
        settings = services().settings
        if request.mimetype == PARTS:
            body = Body(settings.max_upload_mb * 1e6, "max_upload_mb")
            first, blocks = multipart.read(body, request.mimetype_params.get("boundary", ""))
            head = parsed(RolloutHead, first)
            _check(head, len(first))
            lines = Lines(blocks, int(settings.max_item_mb * 1e6))
            try:
                return _create(head, lines, key, owner)
            except InvalidLine as error:
                raise lines.numbered(error) from error
            finally:
                admission.items = lines.items
        asked, size = read_json(RolloutRequest)
        _check(asked, 0 if asked.prompts else size)
        require_finite({"prompts": asked.prompts})
        admission.items = len(asked.prompts)
        return _create(asked, as_lines(asked.prompts), key, owner)

    rollout = admitted(submit)
    response = answer(_view(rollout), 202)
    response.headers["Location"] = f"/v1/rollouts/{rollout}"
    return response


def _check(head: RolloutHead, size: int) -> None:
    require_finite({"metadata": head.metadata})
    if size > MOST_SPEC_BYTES:
        raise too_large(f"The request is larger than {MOST_SPEC_BYTES / 1000:g} kB.")
    if len(json.dumps(head.metadata)) > MOST_METADATA_BYTES:
        raise too_large(f"metadata: is larger than {MOST_METADATA_BYTES / 1000:g} kB.", "metadata")


def _create(head: RolloutHead, lines: Any, key: str | None, owner: str) -> str:
    return services().rollouts.create(head.spec(services().rewards), lines, head.metadata, head.priority, key, owner)


@blueprint.get("/<rollout_id>")
@described("Look at a rollout: its job, its queue, its devices.", {200: RolloutView}, errors=(404,))
def look(rollout_id: str) -> Response:
    return answer(_view(find_rollout(rollout_id).id))


@blueprint.get("/<rollout_id>/statistics")
@described("The figures of a rollout.", {200: RolloutStatistics}, errors=(404,))
def statistics(rollout_id: str) -> Response:
    return answer(services().rollouts.statistics(find_rollout(rollout_id).id))


@blueprint.get("/<rollout_id>/batches")
@described("How fresh each of the last batches was that a trainer took, oldest first.", {200: Batches}, errors=(404,))
def batches(rollout_id: str) -> Response:
    return answer({"batches": services().rollouts.recent(find_rollout(rollout_id).id)})


@blueprint.delete("/<rollout_id>")
@described("End a rollout. Samples that wait can still be had.", {200: RolloutView}, errors=(404,))
def end(rollout_id: str) -> Response:
    services().core.cancel(find_rollout(rollout_id).id)
    return answer(_view(rollout_id))


@blueprint.post("/<rollout_id>/pause")
@described(
    "Generate no more; what is begun is finished and rewarded. With `wait`, the answer comes when nothing is generated "
    "any more; rewards may still be computed.",
    {200: Holding},
    query=HoldQuery,
    errors=(404, 409, 422),
)
def pause(rollout_id: str) -> Response:
    return answer(_hold(rollout_id, True, lambda held: held.holds))


@blueprint.post("/<rollout_id>/resume")
@described("Generate again.", {200: Holding}, query=HoldQuery, errors=(404, 409, 422))
def resume(rollout_id: str) -> Response:
    return answer(_hold(rollout_id, False, lambda held: not held.is_held))


def _hold(rollout_id: str, wish: bool, is_enough: Callable[[Held], bool]) -> dict[str, Any]:
    wait_s, rollout = read_query(HoldQuery).wait, find_active(rollout_id)
    held = services().rollouts.hold(rollout, wish)
    if not is_enough(held):
        held = poll(lambda _: services().rollouts.hold(rollout), is_enough, wait_s) or held
    return {"paused": held.is_held, "holds": held.holds, "generating": held.generating}


def sync_view(status: SyncStatus) -> dict[str, Any]:
    return {
        "version": status.version.number,
        "state": status.state,
        "reason": status.reason,
        "failed_version": status.failed_number,
        "sync_s": status.sync_s,
        "syncs": status.syncs,
        "rollbacks": status.rollbacks,
        "devices": {
            name: {"state": each.state, "version": each.number, "latency_s": each.latency_s, "reason": each.reason}
            for name, each in status.devices.items()
        },
    }


def _view(rollout: str) -> dict[str, Any]:
    rollouts = services().rollouts
    told = rollouts.statistics(rollout)
    generates = rollouts.generates(rollout)
    return {
        "id": rollout,
        "job": job_view(services().core.store.job(rollout)),
        "statistics": told,
        "sync": sync_view(rollouts.sync_status(rollout)) if generates else None,
    }
