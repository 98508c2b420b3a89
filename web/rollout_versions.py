"""The versions of a rollout's weights over HTTP: a trainer announces one, devices take it."""

import hashlib

from flask import Blueprint, Response, request

from tasks.errors import Conflict, InvalidRequest
from tasks.rollouts.versions import SyncStatus
from web.answers import answer
from web.bodies import Body
from web.description import described, read_query
from web.json_bodies import JSON, read_json
from web.places import Places
from web.rollout_schemas import SyncView, VersionQuery, VersionRequest
from web.rollouts import find_active, find_rollout, sync_view
from web.services import services
from web.waiting import poll

blueprint = Blueprint("rollout_versions", __name__, url_prefix="/v1/rollouts/<rollout_id>/versions")

WEIGHTS = "application/octet-stream"


@blueprint.get("")
@described("Which version devices hold, and who follows.", {200: SyncView}, errors=(404,))
def look(rollout_id: str) -> Response:
    return answer(sync_view(services().rollouts.sync_status(find_rollout(rollout_id).id)))


@blueprint.post("")
@described(
    "Announce a version: by the URI of its weights, or with the weights themselves (safetensors) as body and `version` "
    "in the query. With `wait`, the answer comes when the devices have taken it, or it was taken back.",
    {200: SyncView},
    query=VersionQuery,
    errors=(400, 404, 408, 409, 413, 415, 422),
    body=VersionRequest,
)
def announce(rollout_id: str) -> Response:
    query, rollouts = read_query(VersionQuery), services().rollouts
    rollout = find_active(rollout_id)
    if request.mimetype == WEIGHTS:
        status = _announce_ours(rollout, *_received(rollout, query))
    else:
        asked, _ = read_json(VersionRequest)
        settings = services().settings
        Places(settings.weights_urls, "ASSAY_WEIGHTS_URLS", "uri", f"send the weights as {WEIGHTS}").prefix_of(
            asked.uri
        )
        status = rollouts.announce(rollout, asked.version, asked.uri, asked.sha256)

    def is_settled(seen: SyncStatus) -> bool:
        return seen.state != "syncing"

    if not is_settled(status):
        status = poll(lambda _: rollouts.sync_status(rollout), is_settled, query.wait) or status
    return answer(sync_view(status))


def _announce_ours(rollout: str, version: int, uri: str, sha256: str) -> SyncStatus:
    """The same weights sent again change nothing: the answer to the first time was lost."""
    rollouts = services().rollouts
    try:
        return rollouts.announce(rollout, version, uri, sha256, owned=True)
    except Conflict:
        rollouts.delete_weights(uri)
        status = rollouts.sync_status(rollout)
        if (status.version.number, status.version.sha256) != (version, sha256):
            raise
        return status


def _received(rollout: str, query: VersionQuery) -> tuple[int, str, str]:
    """The weights in a file of ours: version, URI and checksum."""
    if query.version is None:
        raise InvalidRequest(f"version: is missing; with weights as body ({WEIGHTS}, not {JSON}) it belongs into the "
                             "query.", field="version")  # fmt: skip
    body, digest = Body(services().settings.max_upload_mb * 1e6, "max_upload_mb"), hashlib.sha256()
    uri, file = services().rollouts.new_weights(rollout, query.version)
    try:
        for block in body.blocks():
            digest.update(block)
            file.write(block)
        file.finish()
        if query.sha256 and query.sha256 != digest.hexdigest():
            raise InvalidRequest(f"sha256: the body's is {digest.hexdigest()}: send it again.", field="sha256")
    except BaseException:
        file.abandon()
        services().rollouts.delete_weights(uri)
        raise
    return query.version, uri, digest.hexdigest()
