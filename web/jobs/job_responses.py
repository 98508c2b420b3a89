"""JSON of jobs and of their results, shared by the endpoints that return them."""

from collections.abc import Iterator
from typing import Any

from flask import Response

from config.settings import DEVELOPMENT_NOTE
from tasks.jobs.model import Job
from web.http.json_responses import encode
from web.jobs.schemas import JOB_FIELDS
from web.services import services

#: Limit of the rows in a JSON response.
MAX_ROWS = 10_000


def job_view(job: Job) -> dict[str, Any]:
    view = {name: getattr(job, name) for name in JOB_FIELDS}
    is_development = job.asks and services().settings.uses_development_api
    view["notes"] = [DEVELOPMENT_NOTE] if is_development else []
    view["results_url"] = f"/v1/jobs/{job.id}/results"
    view["events_url"] = f"/v1/jobs/{job.id}/events"
    return view


def rows(job: Job, start: int, stop: int | None) -> Iterator[bytes]:
    """Return the rows in input order, each as JSON."""
    return (line.encode() for line in services().core.results.texts(job, start, stop))


def with_rows(value: dict[str, Any], results: Iterator[bytes], status: int = 200) -> Response:
    """Respond with the value, and `results` as its last field."""
    body = b'%s,"results":[%s]}' % (encode(value)[:-1], b",".join(results))
    return Response(body, status, mimetype="application/json")
