"""Builds the submit call of a job from a caller's arguments, with its items as a single JSON text or as a stream."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, Union, cast
from urllib.parse import urlencode

from assay import calls, upload
from assay.calls import Call, Submitted
from assay.upload import Items, Upload

#: Number of items above which a list is streamed instead of being serialized as a single JSON text.
STREAM_ABOVE_ITEMS = 5_000
#: Bytes of JSON above which a list is streamed.
STREAM_ABOVE_BYTES = 8 * 1024 * 1024
#: Longest query sent in a URL: servers and proxies commonly refuse request lines of more than 4 kB.
MAX_QUERY_CHARS = 3_000

#: A scorer's name, or {"name": ..., "weight": ..., "options": {...}}.
Scorer = Union[str, Mapping[str, Any]]


class Options(TypedDict, total=False):
    """Options that every kind of job takes."""

    priority: str
    """`interactive`, `normal` (the default) or `bulk`."""
    cache: str
    """`use` (the default), `refresh` or `off`."""
    on_error: str | Mapping[str, float]
    """The score of a failed item: `"null"` (the default), `{"fill": 0.0}`, or `"fail"` to fail the job."""
    deadline_s: float
    max_failed_share: float
    slots: int
    """Most device slots that may work on the job at a time; by default every slot."""
    metadata: Mapping[str, Any]
    idempotency_key: str
    """Generated for each call if not given. Set your own key so that a restarted program finds its job again."""
    wait_s: float
    """Seconds that the server may delay its response so that it contains the results, at most 300."""


def score_spec(scorers: Scorer | Sequence[Scorer], spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Build the spec of kind `score`; a scorer given by name alone is expanded."""
    listed = [scorers] if isinstance(scorers, (str, Mapping)) else scorers
    named = [{"name": each} if isinstance(each, str) else dict(each) for each in listed]
    return {"scorers": named, **(spec or {})}


def spec_with(spec: Mapping[str, Any] | None, **fields: Any) -> dict[str, Any]:
    """Return the spec, extended by the fields that have a value; the spec's own fields take precedence."""
    return {**{name: value for name, value in fields.items() if value}, **(spec or {})}


@contextlib.contextmanager
def submit_call(kind: str, items: Items, spec: Mapping[str, Any] | None, options: Options) -> Iterator[Call[Submitted]]:
    """Build the call that submits this job. It may be retried while the context is open.

    Raise TypeError for an unknown option.
    """
    rest: dict[str, Any] = {"kind": kind, "spec": dict(spec or {})}
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"unknown options: {', '.join(sorted(unknown))}; known options: {', '.join(Options.__annotations__)}"
        )
    rest.update({name: value for name, value in options.items() if name not in ("idempotency_key", "wait_s")})
    key, wait_s = options.get("idempotency_key") or str(uuid.uuid4()), options.get("wait_s") or 0.0
    with contextlib.ExitStack() as stack:
        if isinstance(items, str) and "://" in items:
            named = _dumps({**rest, "items_url": items}).encode()
            yield calls.submit(upload.of_bytes(named, "application/json"), {}, key, wait_s)
            return
        if isinstance(items, upload.Upload):
            body = items
        elif isinstance(items, (str, os.PathLike)):
            body = upload.of_path(items)
        elif not isinstance(items, Sequence):
            lines = (upload.encode(item, index) for index, item in enumerate(items))
            body = stack.enter_context(upload.spooled(lines))
        else:
            listed = cast("Sequence[upload.Item]", items)  # paths are handled above
            whole = _as_json(rest, listed)
            if whole is not None:
                yield calls.submit(whole, {}, key, wait_s)
                return
            body = upload.of_sequence(listed)
        yield stream_call(body, rest, key, wait_s)


def stream_call(body: Upload, rest: Mapping[str, Any], key: str, wait_s: float = 0.0) -> Call[Submitted]:
    """Build the call for a body of lines, with the rest of the request in the query, or in a first part if too long."""
    query = {name: value if isinstance(value, str) else _dumps(value) for name, value in rest.items()}
    if len(urlencode(query)) <= MAX_QUERY_CHARS:
        return calls.submit(body, query, key, wait_s)
    return calls.submit(upload.multipart(_dumps(rest).encode(), body), {}, key, wait_s)


def _as_json(rest: Mapping[str, Any], items: Sequence[upload.Item]) -> Upload | None:
    """Serialize the whole request as a single JSON text; None if it is too large and must be streamed."""
    if len(items) > STREAM_ABOVE_ITEMS:
        return None
    lines, size = [], 0
    for index, item in enumerate(items):
        line = upload.encode(item, index)
        lines.append(line[:-1])
        size += len(line)
        if size > STREAM_ABOVE_BYTES:
            return None
    content = _dumps(rest).encode()[:-1] + b',"items":[' + b",".join(lines) + b"]}"
    return upload.of_bytes(content, "application/json")


def _dumps(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
