"""`/v1/rollouts`: create, read, pause, resume and end rollouts. Samples and versions have modules of their own."""

import json
from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, request

from tasks.errors import Conflict, InvalidLine, UnknownJob
from tasks.jobs.model import Job
from tasks.jobs.submission.upload import as_lines
from tasks.rollouts.rollouts import Held
from tasks.rollouts.weight_versions import SyncStatus
from web.http import multipart
from web.http.bodies import Body
from web.http.http_error import too_large
from web.http.json_bodies import parse_json, read_json, require_finite
from web.http.json_responses import json_response
from web.http.jsonl import JsonlReader
from web.http.long_polling import poll
from web.http.openapi.describe import described
from web.http.quotas import Admission
from web.http.validation import read_query
from web.jobs.job_responses import job_view
from web.jobs.submission import MAX_METADATA_BYTES, MAX_SPEC_BYTES, PARTS, idempotency_key, submit_within_quotas
from web.jobs.views import find
from web.rollouts.schemas import (
    BatchList,
    PauseQuery,
    PauseView,
    RolloutHead,
    RolloutRequest,
    RolloutStatistics,
    RolloutView,
)
from web.services import services

blueprint = Blueprint("rollouts", __name__, url_prefix="/v1/rollouts")


def find_rollout(rollout_id: str) -> Job:
    job = find(rollout_id)
    if job.kind != "rollout":
        raise UnknownJob(f"Job {job.id!r} is of kind {job.kind!r}, not a rollout.")
    return job


def find_active(rollout_id: str) -> str:
    """Return the id of a rollout that has not ended. Raises UnknownJob, Conflict."""
    job = find_rollout(rollout_id)
    if not job.is_active:
        raise Conflict(f"The rollout is {job.state}: it cannot be changed.")
    return job.id


@blueprint.post("")
@described(
    "Create a rollout: samples are generated, rewarded and queued while a trainer takes them. Without a model it is "
    "a sample queue only. Prompts are in the JSON, or are JSONL in a part `items` after a part `request`.",
    {202: RolloutView},
    errors=(400, 408, 409, 413, 415, 422, 429),
    headers={"Idempotency-Key": "A retry with the same key and body returns the same rollout."},
    body=RolloutRequest,
)
def create() -> Response:
    key = idempotency_key()

    def submit(admission: Admission, owner: str) -> str:
        settings = services().settings
        if request.mimetype == PARTS:
            body = Body(settings.max_upload_mb * 1e6, "max_upload_mb")
            first, blocks = multipart.read(body, request.mimetype_params.get("boundary", ""))
            head = parse_json(RolloutHead, first)
            _check(head, len(first))
            lines = JsonlReader(blocks, int(settings.max_item_mb * 1e6))
            try:
                return _create(head, lines, key, owner)
            except InvalidLine as error:
                raise lines.renumber(error) from error
            finally:
                admission.items = lines.items
        rollout, size = read_json(RolloutRequest)
        _check(rollout, 0 if rollout.prompts else size)
        require_finite({"prompts": rollout.prompts})
        admission.items = len(rollout.prompts)
        return _create(rollout, as_lines(rollout.prompts), key, owner)

    rollout_id = submit_within_quotas(submit)
    response = json_response(_view(rollout_id), 202)
    response.headers["Location"] = f"/v1/rollouts/{rollout_id}"
    return response


def _check(head: RolloutHead, size: int) -> None:
    require_finite({"metadata": head.metadata})
    if size > MAX_SPEC_BYTES:
        raise too_large(f"The request is larger than {MAX_SPEC_BYTES / 1000:g} kB: send the prompts in a part `items`.")
    if len(json.dumps(head.metadata)) > MAX_METADATA_BYTES:
        raise too_large(f"metadata: is larger than {MAX_METADATA_BYTES / 1000:g} kB: make it smaller.", "metadata")


def _create(head: RolloutHead, lines: Any, key: str | None, owner: str) -> str:
    return services().rollouts.create(head.spec(services().rewards), lines, head.metadata, head.priority, key, owner)


@blueprint.get("/<rollout_id>")
@described("Read a rollout: its job, its queue, its devices.", {200: RolloutView}, errors=(404,))
def look(rollout_id: str) -> Response:
    return json_response(_view(find_rollout(rollout_id).id))


@blueprint.get("/<rollout_id>/statistics")
@described("Read the statistics of a rollout.", {200: RolloutStatistics}, errors=(404,))
def statistics(rollout_id: str) -> Response:
    return json_response(services().rollouts.statistics(find_rollout(rollout_id).id))


@blueprint.get("/<rollout_id>/batches")
@described("Read how fresh the last batches were that a trainer took, oldest first.", {200: BatchList}, errors=(404,))
def batches(rollout_id: str) -> Response:
    return json_response({"batches": services().rollouts.recent(find_rollout(rollout_id).id)})


@blueprint.delete("/<rollout_id>")
@described("End a rollout. Queued samples can still be taken.", {200: RolloutView}, errors=(404,))
def end(rollout_id: str) -> Response:
    services().core.cancel(find_rollout(rollout_id).id)
    return json_response(_view(rollout_id))


@blueprint.post("/<rollout_id>/pause")
@described(
    "Pause generation; samples in progress are finished and rewarded. With `wait`, the response is sent when "
    "generation has stopped; rewards may still be computed.",
    {200: PauseView},
    query=PauseQuery,
    errors=(404, 409, 422),
)
def pause(rollout_id: str) -> Response:
    return json_response(_hold(rollout_id, True, lambda held: held.holds))


@blueprint.post("/<rollout_id>/resume")
@described("Resume generation.", {200: PauseView}, query=PauseQuery, errors=(404, 409, 422))
def resume(rollout_id: str) -> Response:
    return json_response(_hold(rollout_id, False, lambda held: not held.is_held))


def _hold(rollout_id: str, paused: bool, is_enough: Callable[[Held], bool]) -> dict[str, Any]:
    wait_s, rollout = read_query(PauseQuery).wait, find_active(rollout_id)
    held = services().rollouts.hold(rollout, paused)
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
    statistics = rollouts.statistics(rollout)
    generates = rollouts.generates(rollout)
    return {
        "id": rollout,
        "job": job_view(services().core.store.job(rollout)),
        "statistics": statistics,
        "sync": sync_view(rollouts.sync_status(rollout)) if generates else None,
    }
