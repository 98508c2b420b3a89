"""Answers in JSON, written fast: rows as bytes, no model in between."""

from collections.abc import Iterator
from typing import Any

from flask import Response
from pydantic_core import to_json

from config.settings import DEVELOPMENT_NOTE
from tasks.jobs.model import Job
from web.schemas import JOB_FIELDS
from web.services import services

#: Rows in one answer of JSON at most.
MOST_ROWS = 10_000


def encode(value: Any) -> bytes:
    return to_json(value, inf_nan_mode="null")


def answer(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, mimetype="application/json")


def job_view(job: Job) -> dict[str, Any]:
    view = {name: getattr(job, name) for name in JOB_FIELDS}
    is_development = job.asks and services().settings.uses_development_api
    view["notes"] = [DEVELOPMENT_NOTE] if is_development else []
    view["results_url"] = f"/v1/jobs/{job.id}/results"
    view["events_url"] = f"/v1/jobs/{job.id}/events"
    return view


def rows(job: Job, start: int, stop: int | None) -> Iterator[bytes]:
    """Rows in input order, each as JSON."""
    return (line.encode() for line in services().core.results.texts(job, start, stop))


def with_rows(value: dict[str, Any], results: Iterator[bytes], status: int = 200) -> Response:
    """The value, with `results` as its last member."""
    body = b'%s,"results":[%s]}' % (encode(value)[:-1], b",".join(results))
    return Response(body, status, mimetype="application/json")
