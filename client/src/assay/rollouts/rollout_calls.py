"""Calls of the rollout API as pure values, like the calls of `assay.calls`."""

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
#: Read timeout in seconds, in addition to the time that the server may wait before it responds.
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
    """Create a rollout with prompts as JSON lines, or a queue without generation."""
    body = _body(spec) if prompts is None else upload.multipart(json.dumps(spec).encode(), prompts)
    return Call("POST", "/v1/rollouts", _object, {}, {**body.headers, "Idempotency-Key": key}, body)


def view(rollout: str) -> Call[dict[str, Any]]:
    return Call("GET", _path(rollout), _object)


def statistics(rollout: str) -> Call[dict[str, Any]]:
    return Call("GET", _path(rollout, "/statistics"), _object)


def end(rollout: str) -> Call[dict[str, Any]]:
    return Call("DELETE", _path(rollout), _object)


def pause_or_resume(rollout: str, verb: str, wait_s: float) -> Call[dict[str, Any]]:
    """Pause or resume generation; `verb` is `pause` or `resume`."""
    query = {"wait": f"{wait_s:g}"}
    return Call("POST", _path(rollout, f"/{verb}"), _object, query, read_timeout_s=wait_s + GRACE_S)


def put(rollout: str, request: Mapping[str, Any], key: str, wait_s: float) -> Call[bool]:
    """Put samples; the result is False if the queue had no room. Idempotent by `key`."""
    body = _body(request)

    def parse(reply: Reply) -> bool:
        if reply.status == 409:
            if _object(reply).get("type") != FULL:
                raise error_of(reply)
            return False
        return True

    return Call(
        "POST",
        _path(rollout, "/samples"),
        parse,
        params={"wait": f"{wait_s:g}"},
        headers={**body.headers, "Idempotency-Key": key},
        body=body,
        read_timeout_s=wait_s + GRACE_S,
        accepted=(409,),
    )


def get(rollout: str, query: Mapping[str, str], wait_s: float) -> Call[dict[str, Any]]:
    """Take samples. Safe to retry for a named consumer: the server sends the batch of a lost response again."""
    params = {**query, "wait": f"{wait_s:g}"}
    return Call("GET", _path(rollout, "/samples"), _object, params, read_timeout_s=wait_s + GRACE_S)


def finish_batch(rollout: str, batch: str, verb: str) -> Call[dict[str, Any]]:
    """End the lease of a batch; `verb` is `acknowledge` or `give_back`."""
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
    """Upload weights. Idempotent: the server compares version and checksum with the weights it already has."""
    query = {"version": str(version), "sha256": sha256, "wait": f"{wait_s:g}"}
    return Call(
        "POST", _path(rollout, "/versions"), _object, query, weights.headers, weights, read_timeout_s=wait_s + GRACE_S
    )
