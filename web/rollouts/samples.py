"""`/v1/rollouts/{id}/samples` and `/batches`: put, take, acknowledge and return samples."""

from collections.abc import Iterator
from itertools import chain
from typing import Any
from uuid import uuid4

from flask import Blueprint, Response

from tasks.errors import UnknownJob
from tasks.jobs.model import JOB_ID
from tasks.rollouts.sample_queue import Batch, SampleQueue, Wish, bundles_of
from web.http.http_error import HttpError, broken
from web.http.json_bodies import read_json
from web.http.json_responses import encode, json_response
from web.http.long_polling import poll
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.jobs.submission import idempotency_key
from web.rollouts.schemas import BatchResult, PutQuery, PutRequest, PutResult, SampleBatch, SamplesQuery
from web.services import services

blueprint = Blueprint("rollout_samples", __name__, url_prefix="/v1/rollouts/<rollout_id>")


@blueprint.get("/samples")
@described(
    "Take a batch of samples, oldest first, under a lease; samples that are too stale are dropped. With `wait`, the "
    "response is sent when enough samples are queued.",
    {200: SampleBatch},
    query=SamplesQuery,
    errors=(404, 422),
)
def get(rollout_id: str) -> Response:
    query, rollout = read_query(SamplesQuery), _valid_id(rollout_id)
    wish = Wish(
        query.n,
        query.least,
        query.current_version,
        query.whole == "true",
        query.consumer,
        query.lease_s,
        query.acknowledge,
    )
    rollouts, dropped, first = services().rollouts, 0, -1

    def attempt(waited_s: float) -> Batch:
        nonlocal dropped, first
        batch = rollouts.get(rollout, wish, waited_s)
        dropped += batch.dropped
        first = max(first, batch.acknowledged)  # a later attempt finds it acknowledged already
        return batch

    batch = attempt(0.0)
    if not batch.id:
        batch = poll(attempt, lambda found: bool(found.id), query.wait) or batch
    head: dict[str, Any] = {
        "batch": batch.id or None,
        "samples": batch.samples,
        "current_version": batch.version,
        "dropped": dropped,
        "queued": batch.queued,
        "acknowledgement": _acknowledgement(first) if query.acknowledge else None,
    }
    chunks = _encode_batch(head, rollouts.queue, rollout, batch)
    if all(part.body for part in batch.parts):
        return Response(b"".join(chunks), mimetype="application/json")
    return Response(chain([next(chunks)], chunks), mimetype="application/json")


def _encode_batch(head: dict[str, Any], queue: SampleQueue, rollout: str, batch: Batch) -> Iterator[bytes]:
    """Yield the response group by group: of a large batch, only a few groups are in memory at a time."""
    yield encode(head)[:-1] + b',"groups":['
    for number, text in enumerate(queue.texts(rollout, batch)):
        yield (b"," if number else b"") + text.encode()
    yield b"]}"


@blueprint.post("/samples")
@described(
    "Put samples into the queue atomically. If they do not fit, the response is 409, after `wait`.",
    {200: PutResult},
    query=PutQuery,
    errors=(400, 404, 408, 409, 413, 415, 422),
    headers={"Idempotency-Key": "A retry with the same key puts the samples a single time."},
    body=PutRequest,
)
def put(rollout_id: str) -> Response:
    query, rollout = read_query(PutQuery), _valid_id(rollout_id)
    body, _ = read_json(PutRequest)
    about = {"group_id": body.group_id, "epoch": body.epoch, "metadata": body.metadata}
    bundles = bundles_of(body.samples, body.param_version, about, is_group=body.group_id is not None)
    token, queue = idempotency_key() or uuid4().hex, services().rollouts.queue
    try:
        is_put, queued = queue.put(rollout, bundles, token)
    except ValueError as error:
        raise broken(f"samples: {error}: JSON does not allow this number.", "samples") from error
    if not is_put:
        found = poll(lambda _: queue.put(rollout, bundles, token), lambda done: done[0], query.wait)
        is_put, queued = found or (False, queued)
    if not is_put:
        raise HttpError(
            409,
            "queue_full",
            "Queue full",
            f"The queue has no room for {len(body.samples)} samples, {queued} are queued: "
            "try again when the trainer has taken some samples.",
        )
    return json_response({"put": len(body.samples), "queued": queued})


@blueprint.post("/batches/<batch_id>/acknowledge")
@described(
    "Acknowledge a batch: its samples were used, and are removed from the queue.", {200: BatchResult}, errors=(404,)
)
def acknowledge(rollout_id: str, batch_id: str) -> Response:
    number = services().rollouts.acknowledge(_valid_id(rollout_id), batch_id)
    return json_response({"acknowledgement": _acknowledgement(number), "samples": max(0, number)})


@blueprint.post("/batches/<batch_id>/give_back")
@described(
    "Return a batch to the queue: its samples were not used, and are available to other consumers.",
    {200: BatchResult},
    errors=(404,),
)
def give_back(rollout_id: str, batch_id: str) -> Response:
    number = services().rollouts.queue.give_back(_valid_id(rollout_id), batch_id)
    return json_response({"acknowledgement": None, "samples": number})


def _valid_id(rollout_id: str) -> str:
    """Return the id if it has the form of a job id; only then may it become part of a Redis key. The scripts check that
    the rollout exists."""
    if not JOB_ID.fullmatch(rollout_id):
        raise UnknownJob(f"Rollout {rollout_id[:64]!r} does not exist, or has expired.")
    return rollout_id


def _acknowledgement(number: int) -> str:
    return "done" if number > 0 else "before" if number == 0 else "lapsed"
