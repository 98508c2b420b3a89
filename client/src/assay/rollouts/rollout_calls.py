"""The calls of rollouts as values, like those of `assay.calls`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from assay import upload
from assay.calls import Call
from assay.errors import UnexpectedReply
from assay.retry import error_of

if TYPE_CHECKING:
    from assay.steps import Reply
    from assay.upload import Upload

JSON = "application/json"
WEIGHTS = "application/octet-stream"
#: Seconds beyond those that the server may wait before an answer counts as lost.
GRACE_S = 60.0
FULL = "urn:assay:queue_full"


def _object(reply: Reply) -> dict[str, Any]:
    data = reply.json()
    if not isinstance(data, dict):
        raise UnexpectedReply(f"Expected an object, got {str(data)[:200]!r}.")
    return data


def _path(rollout: str, rest: str = "") -> str:
    return f"/v1/rollouts/{quote(rollout, safe='')}{rest}"


def _body(value: Mapping[str, Any]) -> Upload:
    return upload.of_bytes(json.dumps(value, allow_nan=False, separators=(",", ":")).encode(), JSON)


def create(spec: Mapping[str, Any], prompts: Upload | None, key: str) -> Call[dict[str, Any]]:
    """With prompts as lines, or as a queue alone."""
    body = _body(spec) if prompts is None else upload.with_first_part(json.dumps(spec).encode(), prompts)
    return Call("POST", "/v1/rollouts", _object, {}, {**body.headers, "Idempotency-Key": key}, body)


def look(rollout: str) -> Call[dict[str, Any]]:
    return Call("GET", _path(rollout), _object)


def statistics(rollout: str) -> Call[dict[str, Any]]:
    return Call("GET", _path(rollout, "/statistics"), _object)


def end(rollout: str) -> Call[dict[str, Any]]:
    return Call("DELETE", _path(rollout), _object)


def hold(rollout: str, verb: str, wait_s: float) -> Call[dict[str, Any]]:
    """`verb`: `pause` or `resume`."""
    query = {"wait": f"{wait_s:g}"}
    return Call("POST", _path(rollout, f"/{verb}"), _object, query, read_timeout_s=wait_s + GRACE_S)


def put(rollout: str, request: Mapping[str, Any], key: str, wait_s: float) -> Call[bool]:
    """Whether there was room."""
    body = _body(request)

    def parse(reply: Reply) -> bool:
        if reply.status == 409:
            if _object(reply).get("type") != FULL:
                raise error_of(reply)
            return False
        return True

    return Call(
        "POST", _path(rollout, "/samples"), parse, {"wait": f"{wait_s:g}"}, {**body.headers, "Idempotency-Key": key},
        body, read_timeout_s=wait_s + GRACE_S, accepted=(409,),
    )  # fmt: skip


def get(rollout: str, query: Mapping[str, str], wait_s: float) -> Call[dict[str, Any]]:
    """Safe to repeat for a consumer with a name: what a lost answer held comes again."""
    params = {**query, "wait": f"{wait_s:g}"}
    return Call("GET", _path(rollout, "/samples"), _object, params, read_timeout_s=wait_s + GRACE_S)


def settle(rollout: str, batch: str, verb: str) -> Call[dict[str, Any]]:
    """`verb`: `acknowledge` or `give_back`."""
    return Call("POST", _path(rollout, f"/batches/{quote(batch, safe='')}/{verb}"), _object)


def versions(rollout: str) -> Call[dict[str, Any]]:
    return Call("GET", _path(rollout, "/versions"), _object)


def announce(rollout: str, version: int, uri: str, sha256: str, wait_s: float) -> Call[dict[str, Any]]:
    body = _body({"version": version, "uri": uri, "sha256": sha256})
    query = {"wait": f"{wait_s:g}"}
    return Call(
        "POST", _path(rollout, "/versions"), _object, query, body.headers, body, read_timeout_s=wait_s + GRACE_S
    )


def send_weights(rollout: str, version: int, weights: Upload, sha256: str, wait_s: float) -> Call[dict[str, Any]]:
    """Safe to repeat: the server knows by version and checksum what it has."""
    query = {"version": str(version), "sha256": sha256, "wait": f"{wait_s:g}"}
    return Call(
        "POST", _path(rollout, "/versions"), _object, query, weights.headers, weights, read_timeout_s=wait_s + GRACE_S
    )
