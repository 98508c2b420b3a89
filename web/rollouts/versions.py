"""`/v1/rollouts/{id}/versions`: a trainer announces a version of the weights, and the devices load it."""

import hashlib

from flask import Blueprint, Response, request

from tasks.errors import Conflict, InvalidRequest
from tasks.rollouts.weight_versions import SyncStatus
from web.http.allowed_urls import AllowedUrls
from web.http.bodies import Body
from web.http.json_bodies import JSON, read_json
from web.http.json_responses import json_response
from web.http.long_polling import poll
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.rollouts.schemas import SyncView, VersionQuery, VersionRequest
from web.rollouts.views import find_active, find_rollout, sync_view
from web.services import services

blueprint = Blueprint("rollout_versions", __name__, url_prefix="/v1/rollouts/<rollout_id>/versions")

WEIGHTS = "application/octet-stream"


@blueprint.get("")
@described("Read the state of the weight sync: the current version, and each device.", {200: SyncView}, errors=(404,))
def look(rollout_id: str) -> Response:
    return json_response(sync_view(services().rollouts.sync_status(find_rollout(rollout_id).id)))


@blueprint.post("")
@described(
    "Announce a version: by the URI of its weights, or with the weights themselves (safetensors) as body and `version` "
    "in the query. With `wait`, the response is sent when the devices have loaded it, or it was rolled back.",
    {200: SyncView},
    query=VersionQuery,
    errors=(400, 404, 408, 409, 413, 415, 422),
    body=VersionRequest,
)
def announce(rollout_id: str) -> Response:
    query, rollouts = read_query(VersionQuery), services().rollouts
    rollout = find_active(rollout_id)
    if request.mimetype == WEIGHTS:
        status = _announce_upload(rollout, *_store_upload(rollout, query))
    else:
        body, _ = read_json(VersionRequest)
        settings = services().settings
        AllowedUrls(settings.weights_urls, "ASSAY_WEIGHTS_URLS", "uri", f"send the weights as {WEIGHTS}").prefix_of(
            body.uri
        )
        status = rollouts.announce(rollout, body.version, body.uri, body.sha256)

    def is_settled(seen: SyncStatus) -> bool:
        return seen.state != "syncing"

    if not is_settled(status):
        status = poll(lambda _: rollouts.sync_status(rollout), is_settled, query.wait) or status
    return json_response(sync_view(status))


def _announce_upload(rollout: str, version: int, uri: str, sha256: str) -> SyncStatus:
    """Announce uploaded weights. Idempotent: a client sends the same weights again if it lost the first response."""
    rollouts = services().rollouts
    try:
        return rollouts.announce(rollout, version, uri, sha256, owned=True)
    except Conflict:
        rollouts.delete_weights(uri)
        status = rollouts.sync_status(rollout)
        if (status.version.number, status.version.sha256) != (version, sha256):
            raise
        return status


def _store_upload(rollout: str, query: VersionQuery) -> tuple[int, str, str]:
    """Store the body as a file of weights. Return its version, URI and checksum."""
    if query.version is None:
        raise InvalidRequest(
            f"version: is missing; with weights as body ({WEIGHTS}, not {JSON}), send it in the query.",
            field="version",
        )
    body, digest = Body(services().settings.max_upload_mb * 1e6, "max_upload_mb"), hashlib.sha256()
    uri, file = services().rollouts.new_weights(rollout, query.version)
    try:
        for block in body.blocks():
            digest.update(block)
            file.write(block)
        file.finish()
        if query.sha256 and query.sha256 != digest.hexdigest():
            raise InvalidRequest(
                f"sha256: the body has {digest.hexdigest()}: send it again, or correct the checksum.", field="sha256"
            )
    except BaseException:
        file.abandon()
        services().rollouts.delete_weights(uri)
        raise
    return query.version, uri, digest.hexdigest()
