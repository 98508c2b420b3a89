"""From a request over HTTP to a job: JSON as one body, JSONL as a stream of lines, an upload in parts, or a URL."""

import re
from collections.abc import Callable, Iterable

from flask import request
from pydantic_core import to_json

from tasks.errors import InvalidLine, InvalidRequest
from tasks.jobs.model import Fill, JobHead, JobRequest
from web import item_urls, multipart
from web.bodies import Body
from web.guard import token
from web.item_urls import Inputs, JobByUrl
from web.json_bodies import JSON, parsed, require_finite
from web.lines import Lines
from web.quotas import Admission
from web.refusal import Refused, too_large
from web.schemas import LinesQuery
from web.services import services
from web.tracing import note_job

LINES = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/x-jsonlines")
PARTS = "multipart/form-data"

#: Bytes of `spec` and `metadata` at most: a worker reads the one, and every look at the job the other.
MOST_SPEC_BYTES = 1_000_000
MOST_METADATA_BYTES = 100_000

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_HEAD_PARAMETERS = frozenset(LinesQuery.model_fields) - {"wait"}


def accept(query: LinesQuery) -> str:
    """The id of the job this request makes, or made before."""
    key = idempotency_key()
    return admitted(lambda admission, owner: _accept(query, key, admission, owner))


def admitted(submit: Callable[[Admission, str], str]) -> str:
    """What every submit passes: the backlog, and the quotas of its token, whose name it is told. The id of its job."""
    services().backlog.check()
    with services().quotas.admitted(known := token()) as admission:
        admission.job = submit(admission, known.name if known else "")
        note_job(admission.job)
        services().backlog.add(admission.items)
        return admission.job


def _accept(query: LinesQuery, key: str | None, admission: Admission, owner: str) -> str:
    content, settings = request.mimetype, services().settings
    if content == JSON:
        if given := next((name for name in request.args if name in _HEAD_PARAMETERS), None):
            raise InvalidRequest(f"{given}: belongs into the JSON body, not into the query.", field=given)
        text = Body(settings.max_body_mb * 1e6, "max_body_mb").whole()
        if item_urls.is_by_url(text):
            return _submit_url(text, key, admission, owner)
        job = _read_json(text)
        admission.items = len(job.items)
        return services().core.door.submit(job, key, owner)
    if content in LINES or content == PARTS:
        body = Body(settings.max_upload_mb * 1e6, "max_upload_mb")
        if content == PARTS:
            first, blocks = multipart.read(body, request.mimetype_params.get("boundary", ""))
            head = _read_head(first)
        else:
            head, blocks = _head_of(query), body.blocks()
        return _submit_lines(head, blocks, key, admission, owner)
    raise Refused(
        415, "content_type", "Unknown content type",
        f"The content type is {content[:100]!r}: send a job as {JSON}, its items as {LINES[0]}, or both as {PARTS}.",
        "Content-Type", {"Accept": ", ".join((JSON, LINES[0], PARTS))},
    )  # fmt: skip


def _submit_lines(head: JobHead, blocks: Iterable[bytes], key: str | None, admission: Admission, owner: str) -> str:
    lines = Lines(blocks, int(services().settings.max_item_mb * 1e6))
    try:
        return services().core.door.submit_lines(head, lines, key, owner)
    except InvalidLine as error:
        raise lines.numbered(error) from error
    finally:
        admission.items = lines.items


def _submit_url(text: bytes, key: str | None, admission: Admission, owner: str) -> str:
    settings = services().settings
    job = parsed(JobByUrl, text)
    _check_head(job)
    head = JobHead.model_construct(**{name: getattr(job, name) for name in JobHead.model_fields})
    with Inputs(settings.input_urls, settings.max_upload_mb * 1e6).blocks(job.items_url) as blocks:
        return _submit_lines(head, blocks, key, admission, owner)


def idempotency_key() -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            "Idempotency-Key: use 1 to 200 visible ASCII characters, without spaces.", field="Idempotency-Key"
        )
    # Keys of one client must not find jobs of another.
    return f"{known.name}/{key}" if (known := token()) else key


def _read_json(text: bytes) -> JobRequest:
    settings = services().settings
    job = parsed(JobRequest, text)
    if len(job.items) > settings.max_items:
        raise too_large(
            f"items: {len(job.items):,} are more than a JSON body may have ({settings.max_items:,}, ASSAY_MAX_ITEMS): "
            "send them as JSONL (application/x-ndjson).", "items",
        )  # fmt: skip
    require_finite({"items": job.items})
    _check_head(job)
    check_sizes(job, len(text), "items[{}]")
    return job


def check_sizes(job: JobRequest, body_bytes: int, place: str) -> None:
    """Whether one of the items is too large; `place` is how its client calls it."""
    most = int(services().settings.max_item_mb * 1e6)
    if body_bytes > most:
        for index, item in enumerate(job.items):
            if len(to_json(item)) > most:
                where = place.format(index)
                raise too_large(f"{where}: is larger than {most / 1e6:g} MB (ASSAY_MAX_ITEM_MB).", where)


def _read_head(text: bytes) -> JobHead:
    head = parsed(JobHead, text)
    _check_head(head)
    return head


def _head_of(query: LinesQuery) -> JobHead:
    given = query.model_dump(include=set(_HEAD_PARAMETERS), exclude_none=True)
    if "kind" not in given:
        raise InvalidRequest("kind: is missing; with a JSONL body it belongs into the query.", field="kind")
    head = JobHead.model_validate(given)
    _check_head(head)
    return head


def _check_head(head: JobHead) -> None:
    """All of a request but its items: what pydantic lets pass, and Redis should not have to hold."""
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
    for name, most in (("spec", MOST_SPEC_BYTES), ("metadata", MOST_METADATA_BYTES)):
        if len(to_json(getattr(head, name))) > most:
            raise too_large(f"{name}: is larger than {most / 1000:g} kB.", name)
