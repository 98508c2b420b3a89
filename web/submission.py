"""From a request over HTTP to a job: JSON as one body, JSONL as a stream of lines, or an upload in parts."""

import re
from collections.abc import Iterator
from typing import Any

from flask import request
from pydantic import ValidationError
from pydantic_core import to_json

from tasks.errors import InvalidRequest
from tasks.jobs.model import Fill, JobHead, JobRequest
from tasks.jobs.upload import infinite
from web import lines, multipart
from web.bodies import Body
from web.description import invalid
from web.guard import token
from web.quotas import Admission
from web.refusal import Refused, broken, too_large
from web.schemas import LinesQuery
from web.services import services

JSON = "application/json"
LINES = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/x-jsonlines")
PARTS = "multipart/form-data"

#: Bytes of `spec` and `metadata` at most: a worker reads the one, and every look at the job the other.
MOST_SPEC_BYTES = 1_000_000
MOST_METADATA_BYTES = 100_000

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_HEAD_PARAMETERS = frozenset(LinesQuery.model_fields) - {"wait"}


def accept(query: LinesQuery) -> str:
    """The id of the job this request makes, or made before."""
    key = _idempotency_key()
    services().backlog.check()
    with services().quotas.admitted(token()) as admission:
        admission.job = _accept(query, key, admission)
        services().backlog.add(admission.items)
        return admission.job


def _accept(query: LinesQuery, key: str | None, admission: Admission) -> str:
    content, settings = request.mimetype, services().settings
    if content == JSON:
        if given := next((name for name in request.args if name in _HEAD_PARAMETERS), None):
            raise InvalidRequest(f"{given}: belongs into the JSON body, not into the query.", field=given)
        job = _read_json(Body(settings.max_body_mb * 1e6, "max_body_mb"))
        admission.items = len(job.items)
        return services().core.door.submit(job, key)
    if content in LINES or content == PARTS:
        body = Body(settings.max_upload_mb * 1e6, "max_upload_mb")
        if content == PARTS:
            first, blocks = multipart.read(body, request.mimetype_params.get("boundary", ""))
            head = _read_head(first)
        else:
            head, blocks = _head_of(query), body.blocks()
        split = lines.split(blocks, int(settings.max_item_mb * 1e6))
        return services().core.door.submit_lines(head, _counted(split, admission), key)
    raise Refused(
        415, "content_type", "Unknown content type",
        f"The content type is {content[:100]!r}: send a job as {JSON}, its items as {LINES[0]}, or both as {PARTS}.",
        "Content-Type", {"Accept": ", ".join((JSON, LINES[0], PARTS))},
    )  # fmt: skip


def _counted(split: Iterator[bytes], admission: Admission) -> Iterator[bytes]:
    for line in split:
        admission.items += 1
        yield line


def _idempotency_key() -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            "Idempotency-Key: use 1 to 200 visible ASCII characters, without spaces.", field="Idempotency-Key"
        )
    # Keys of one client must not find jobs of another.
    return f"{known.name}/{key}" if (known := token()) else key


def _read_json(body: Body) -> JobRequest:
    settings, text = services().settings, body.whole()
    try:
        job = JobRequest.model_validate_json(text)
    except ValidationError as error:
        raise unreadable(error) from error
    if len(job.items) > settings.max_items:
        raise too_large(
            f"items: {len(job.items):,} are more than a JSON body may have ({settings.max_items:,}, ASSAY_MAX_ITEMS): "
            "send them as JSONL (application/x-ndjson).", "items",
        )  # fmt: skip
    _require_finite({"items": job.items})
    _check_head(job)
    most = int(settings.max_item_mb * 1e6)
    if len(text) > most:
        for index, item in enumerate(job.items):
            if len(to_json(item)) > most:
                raise too_large(
                    f"items[{index}]: is larger than {most / 1e6:g} MB (ASSAY_MAX_ITEM_MB).", f"items[{index}]"
                )
    return job


def _read_head(text: bytes) -> JobHead:
    try:
        head = JobHead.model_validate_json(text)
    except ValidationError as error:
        raise unreadable(error) from error
    _check_head(head)
    return head


def _head_of(query: LinesQuery) -> JobHead:
    given = query.model_dump(include=set(_HEAD_PARAMETERS), exclude_none=True)
    if "kind" not in given:
        raise InvalidRequest("kind: is missing; with a JSONL body it belongs into the query.", field="kind")
    head = JobHead.model_validate(given)
    _check_head(head)
    return head


def unreadable(error: ValidationError) -> Exception:
    """What is wrong with a body of JSON."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return broken(f"The body is not JSON: {first['ctx']['error']}.")
    return invalid(error)


def _check_head(head: JobHead) -> None:
    """All of a request but its items: what pydantic lets pass, and Redis should not have to hold."""
    on_error = {"fill": head.on_error.fill} if isinstance(head.on_error, Fill) else head.on_error
    _require_finite(
        {
            "spec": head.spec,
            "metadata": head.metadata,
            "on_error": on_error,
            "deadline_s": head.deadline_s,
            "item_deadline_s": head.item_deadline_s,
        }
    )
    for name, most in (("spec", MOST_SPEC_BYTES), ("metadata", MOST_METADATA_BYTES)):
        if len(to_json(getattr(head, name))) > most:
            raise too_large(f"{name}: is larger than {most / 1000:g} kB.", name)


def _require_finite(value: dict[str, Any]) -> None:
    """NaN is not JSON, and 1e999 is read as infinity: neither can be stored, hashed or computed with."""
    text = to_json(value)
    # Strings may hold these words too, so only then it is worth to look at every value.
    if (b"NaN" in text or b"Infinity" in text) and (place := infinite(value)):
        raise broken(f"{place}: is not a finite number, which JSON does not have.", place)
