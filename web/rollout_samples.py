"""The samples of a rollout over HTTP: put, get, acknowledge, give back."""

from collections.abc import Iterator
from itertools import chain
from typing import Any
from uuid import uuid4

from flask import Blueprint, Response

from tasks.errors import UnknownJob
from tasks.jobs.model import JOB_ID
from tasks.rollouts.queue import Batch, SampleQueue, Wish, bundles_of
from web.answers import answer, encode
from web.description import described, read_query
from web.json_bodies import read_json
from web.refusal import Refused, broken
from web.rollout_schemas import BatchAnswer, PutAnswer, PutQuery, PutRequest, SampleBatch, SamplesQuery
from web.services import services
from web.submission import idempotency_key
from web.waiting import poll

blueprint = Blueprint("rollout_samples", __name__, url_prefix="/v1/rollouts/<rollout_id>")


@blueprint.get("/samples")
@described(
    "Take a batch of samples, oldest first, under a lease; what is too stale is dropped. With `wait`, the answer comes "
    "when there are enough.",
    {200: SampleBatch},
    query=SamplesQuery,
    errors=(404, 422),
)
def get(rollout_id: str) -> Response:
    query, rollout = read_query(SamplesQuery), _checked(rollout_id)
    wish = Wish(
        query.n, query.least, query.current_version, query.whole == "true", query.consumer, query.lease_s,
        query.acknowledge,
    )  # fmt: skip
    rollouts, dropped, first = services().rollouts, 0, -1

    def attempt(waited_s: float) -> Batch:
        nonlocal dropped, first
        batch = rollouts.get(rollout, wish, waited_s)
        dropped += batch.dropped
        first = max(first, batch.acknowledged)  # a later try finds it acknowledged before
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
        "acknowledgement": _word(first) if query.acknowledge else None,
    }
    pieces = _pieces(head, rollouts.queue, rollout, batch)
    if all(part.body for part in batch.parts):
        return Response(b"".join(pieces), mimetype="application/json")
    return Response(chain([next(pieces)], pieces), mimetype="application/json")


def _pieces(head: dict[str, Any], queue: SampleQueue, rollout: str, batch: Batch) -> Iterator[bytes]:
    """The answer, group by group: of a large batch only a few are held at a time."""
    yield encode(head)[:-1] + b',"groups":['
    for number, text in enumerate(queue.texts(rollout, batch)):
        yield (b"," if number else b"") + text.encode()
    yield b"]}"


@blueprint.post("/samples")
@described(
    "Put samples into the queue, all or none. Where there is no room, the answer is 409, after `wait`.",
    {200: PutAnswer},
    query=PutQuery,
    errors=(400, 404, 408, 409, 413, 415, 422),
    headers={"Idempotency-Key": "A repeat with the same key puts nothing twice."},
    body=PutRequest,
)
def put(rollout_id: str) -> Response:
    query, rollout = read_query(PutQuery), _checked(rollout_id)
    asked, _ = read_json(PutRequest)
    about = {"group_id": asked.group_id, "epoch": asked.epoch, "metadata": asked.metadata}
    bundles = bundles_of(asked.samples, asked.param_version, about, is_group=asked.group_id is not None)
    token, queue = idempotency_key() or uuid4().hex, services().rollouts.queue
    try:
        is_put, queued = queue.put(rollout, bundles, token)
    except ValueError as error:
        raise broken(f"samples: {error}: JSON has no such number.", "samples") from error
    if not is_put:
        found = poll(lambda _: queue.put(rollout, bundles, token), lambda done: done[0], query.wait)
        is_put, queued = found or (False, queued)
    if not is_put:
        raise Refused(
            409, "queue_full", "Queue full", f"There is no room for {len(asked.samples)} samples, {queued} wait: "
            "try again when the trainer has taken some.",
        )  # fmt: skip
    return answer({"put": len(asked.samples), "queued": queued})


@blueprint.post("/batches/<batch_id>/acknowledge")
@described("The samples of a batch were used: they are gone for good.", {200: BatchAnswer}, errors=(404,))
def acknowledge(rollout_id: str, batch_id: str) -> Response:
    number = services().rollouts.acknowledge(_checked(rollout_id), batch_id)
    return answer({"acknowledgement": _word(number), "samples": max(0, number)})


@blueprint.post("/batches/<batch_id>/give_back")
@described("The samples of a batch are not used: others may have them.", {200: BatchAnswer}, errors=(404,))
def give_back(rollout_id: str, batch_id: str) -> Response:
    number = services().rollouts.queue.give_back(_checked(rollout_id), batch_id)
    return answer({"acknowledgement": None, "samples": number})


def _checked(rollout_id: str) -> str:
    """Only names that could be one reach Redis, where they become part of a key; whether it is one, the scripts say."""
    if not JOB_ID.fullmatch(rollout_id):
        raise UnknownJob(f"There is no rollout {rollout_id[:64]!r}; it may have expired.")
    return rollout_id


def _word(number: int) -> str:
    return "done" if number > 0 else "before" if number == 0 else "lapsed"
