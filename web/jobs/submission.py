"""Submission of jobs over HTTP: as a JSON body, a stream of JSONL lines, a multipart upload, or the URL of a file."""

import re
from collections.abc import Callable, Iterable

from flask import request
from pydantic_core import to_json

from tasks.errors import InvalidLine, InvalidRequest
from tasks.jobs.model import Fill, JobHead, JobRequest
from web.http import multipart
from web.http.auth.authenticate import token
from web.http.bodies import Body
from web.http.http_error import HttpError, too_large
from web.http.json_bodies import JSON, parse_json, require_finite
from web.http.jsonl import JsonlReader
from web.http.quotas import Admission
from web.http.tracing import note_job
from web.jobs import item_urls
from web.jobs.item_urls import ItemUrlReader
from web.jobs.schemas import JobByUrl, SubmitQuery
from web.services import services

LINES = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/x-jsonlines")
PARTS = "multipart/form-data"

#: Limits of `spec` and `metadata` in bytes: every worker reads the spec, and every read of the job the metadata.
MAX_SPEC_BYTES = 1_000_000
MAX_METADATA_BYTES = 100_000

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_HEAD_PARAMETERS = frozenset(SubmitQuery.model_fields) - {"wait"}


def accept(query: SubmitQuery) -> str:
    """Submit the job of this request and return its id; for a repeated idempotency key, the id of the first job."""
    key = idempotency_key()
    return submit_within_quotas(lambda admission, owner: _accept(query, key, admission, owner))


def submit_within_quotas(submit: Callable[[Admission, str], str]) -> str:
    """Run a submit under the backlog limit, the memory budget and the quotas of its token. Return the id of its job.

    `submit` is called with the admission and the name of the token.
    """
    services().backlog.check()
    services().memory_budget.check()
    with services().quotas.admitted(known := token()) as admission:
        admission.job = submit(admission, known.name if known else "")
        note_job(admission.job)
        services().backlog.add(admission.items)
        return admission.job


def _accept(query: SubmitQuery, key: str | None, admission: Admission, owner: str) -> str:
    content, settings = request.mimetype, services().settings
    if content == JSON:
        if given := next((name for name in request.args if name in _HEAD_PARAMETERS), None):
            raise InvalidRequest(f"{given}: is in the query; move it into the JSON body.", field=given)
        text = Body(settings.max_body_mb * 1e6, "max_body_mb").whole()
        if item_urls.is_by_url(text):
            return _submit_url(text, key, admission, owner)
        job = _read_json(text)
        admission.items = len(job.items)
        return services().core.submitter.submit(job, key, owner)
    if content in LINES or content == PARTS:
        body = Body(settings.max_upload_mb * 1e6, "max_upload_mb")
        if content == PARTS:
            first, blocks = multipart.read(body, request.mimetype_params.get("boundary", ""))
            head = _read_head(first)
        else:
            head, blocks = _head_of(query), body.blocks()
        return _submit_lines(head, blocks, key, admission, owner)
    raise HttpError(
        415,
        "content_type",
        "Unknown content type",
        f"The content type is {content[:100]!r}: send a job as {JSON}, its items as {LINES[0]}, or both as {PARTS}.",
        "Content-Type",
        {"Accept": ", ".join((JSON, LINES[0], PARTS))},
    )


def _submit_lines(head: JobHead, blocks: Iterable[bytes], key: str | None, admission: Admission, owner: str) -> str:
    lines = JsonlReader(blocks, int(services().settings.max_item_mb * 1e6))
    try:
        return services().core.submitter.submit_lines(head, lines, key, owner)
    except InvalidLine as error:
        raise lines.renumber(error) from error
    finally:
        admission.items = lines.items


def _submit_url(text: bytes, key: str | None, admission: Admission, owner: str) -> str:
    settings = services().settings
    job = parse_json(JobByUrl, text)
    _check_head(job)
    head = JobHead.model_construct(**{name: getattr(job, name) for name in JobHead.model_fields})
    with ItemUrlReader(settings.input_urls, settings.max_upload_mb * 1e6).blocks(job.items_url) as blocks:
        return _submit_lines(head, blocks, key, admission, owner)


def idempotency_key() -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            "Idempotency-Key: use 1 to 200 visible ASCII characters, without spaces.", field="Idempotency-Key"
        )
    # A key of a client must not find jobs of other clients.
    return f"{known.name}/{key}" if (known := token()) else key


def _read_json(text: bytes) -> JobRequest:
    settings = services().settings
    job = parse_json(JobRequest, text)
    if len(job.items) > settings.max_items:
        raise too_large(
            f"items: {len(job.items):,} exceed the limit of a JSON body ({settings.max_items:,}, ASSAY_MAX_ITEMS): "
            "send the items as JSONL (application/x-ndjson).",
            "items",
        )
    require_finite({"items": job.items})
    _check_head(job)
    check_sizes(job, len(text), "items[{}]")
    return job


def check_sizes(job: JobRequest, body_bytes: int, place: str) -> None:
    """Reject a job with an item that is too large; `place` is the client's name for an item."""
    max_bytes = int(services().settings.max_item_mb * 1e6)
    if body_bytes > max_bytes:
        for index, item in enumerate(job.items):
            if len(to_json(item)) > max_bytes:
                where = place.format(index)
                raise too_large(
                    f"{where}: is larger than {max_bytes / 1e6:g} MB (ASSAY_MAX_ITEM_MB): make the item smaller.", where
                )


def _read_head(text: bytes) -> JobHead:
    head = parse_json(JobHead, text)
    _check_head(head)
    return head


def _head_of(query: SubmitQuery) -> JobHead:
    given = query.model_dump(include=set(_HEAD_PARAMETERS), exclude_none=True)
    if "kind" not in given:
        raise InvalidRequest("kind: is missing; with a JSONL body, send it in the query.", field="kind")
    head = JobHead.model_validate(given)
    _check_head(head)
    return head


def _check_head(head: JobHead) -> None:
    """Check the request without its items: numbers must be finite, and texts small enough for Redis."""
    on_error = {"fill": head.on_error.fill} if isinstance(head.on_error, Fill) else head.on_error
    require_finite(
        {
            "spec": head.spec,
            "metadata": head.metadata,
            "on_error": on_error,
            "deadline_s": head.deadline_s,
            "item_deadline_s": head.item_deadline_s,
        }
    )
    for name, max_bytes in (("spec", MAX_SPEC_BYTES), ("metadata", MAX_METADATA_BYTES)):
        if len(to_json(getattr(head, name))) > max_bytes:
            raise too_large(f"{name}: is larger than {max_bytes / 1000:g} kB: make it smaller.", name)
