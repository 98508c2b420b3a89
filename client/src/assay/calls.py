"""Calls of the HTTP API as pure values: the request to send, and the function that parses the response. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar
from urllib.parse import quote

from assay.errors import UnexpectedReply
from assay.model import Calibration, JobView, Row

if TYPE_CHECKING:
    from assay.steps import Reply
    from assay.upload import Upload

T = TypeVar("T")

NDJSON = "application/x-ndjson"
#: Read timeout in seconds of a calibration: the server reads every item of the job for it.
CALIBRATION_S = 600.0
#: Seconds without a byte after which an event stream counts as dead; the server sends a ping every 15 seconds.
SILENCE_S = 35.0
#: Read timeout in seconds of a job's statistics.
STATISTICS_S = 600.0


def _ignore(_: Reply) -> Any:
    return None


@dataclass(frozen=True)
class Call(Generic[T]):
    method: str
    path: str
    parse: Callable[[Reply], T] = _ignore
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Upload | None = None
    repeatable: bool = True
    """Whether the call is idempotent: it may be sent again when the server may already have received it."""
    read_timeout_s: float | None = None
    accepted: tuple[int, ...] = ()
    """Error statuses that `parse` handles itself."""


@dataclass(frozen=True)
class Submitted:
    """The submitted job, with its rows if it ended before the response was sent."""

    view: JobView
    rows: list[Row] | None


def submit(body: Upload, params: Mapping[str, str], key: str, wait_s: float) -> Call[Submitted]:
    """Submit a job. Idempotent by `key`: a retry returns the same job, so the call is safe to repeat."""
    query = dict(params, wait=f"{wait_s:g}") if wait_s else params
    headers = {**body.headers, "Idempotency-Key": key}
    return Call("POST", "/v1/jobs", _submitted, query, headers, body, read_timeout_s=wait_s + 60)


def _submitted(reply: Reply) -> Submitted:
    data = reply.json()
    view, rows = JobView.from_json(data), data.get("results")
    return Submitted(view, None if rows is None else [Row.from_json(row) for row in rows])


def _view(reply: Reply) -> JobView:
    return JobView.from_json(reply.json())


def _path(job: str, rest: str = "") -> str:
    return f"/v1/jobs/{quote(job, safe='')}{rest}"


def job(job_id: str) -> Call[JobView]:
    return Call("GET", _path(job_id), _view)


def jobs(kind: str, state: str, limit: int, cursor: str) -> Call[tuple[list[JobView], str]]:
    given = {"kind": kind, "state": state, "limit": str(limit), "cursor": cursor}
    return Call("GET", "/v1/jobs", _page, {name: value for name, value in given.items() if value})


def _page(reply: Reply) -> tuple[list[JobView], str]:
    data = reply.json()
    return [JobView.from_json(each) for each in data["jobs"]], str(data.get("next") or "")


def cancel(job_id: str) -> Call[JobView]:
    return Call("DELETE", _path(job_id), _view)


def purge(job_id: str) -> Call[JobView]:
    return Call("DELETE", _path(job_id), _view, params={"purge": "true"})


def repair(job_id: str) -> Call[int]:
    return Call("POST", _path(job_id, "/repair"), lambda reply: int(reply.json()["repaired"]))


def pause(job_id: str) -> Call[JobView]:
    return Call("POST", _path(job_id, "/pause"), _view)


def resume(job_id: str) -> Call[JobView]:
    return Call("POST", _path(job_id, "/resume"), _view)


def retry(job_id: str) -> Call[JobView]:
    """Run the failed items again. Not idempotent: a second call could run items that failed a second time."""
    return Call("POST", _path(job_id, "/retry"), _view, repeatable=False)


def calibration(job_id: str) -> Call[Calibration]:
    return Call("GET", _path(job_id, "/calibration"), _calibration, read_timeout_s=CALIBRATION_S)


def _calibration(reply: Reply) -> Calibration:
    return Calibration.from_json(reply.json())


def rows(job_id: str, start: int, limit: int | None) -> Call[None]:
    params = {"start": str(start)}
    if limit is not None:
        params["limit"] = str(limit)
    return Call("GET", _path(job_id, "/results"), params=params, headers={"Accept": NDJSON})


def output(job_id: str, start: int) -> Call[None]:
    return Call("GET", _path(job_id, "/output"), params={"start": str(start)}, headers={"Accept": NDJSON})


def statistics(job_id: str) -> Call[dict[str, Any]]:
    """Statistics of an inference job. The server scans every row for it, possibly millions."""
    return Call("GET", _path(job_id, "/statistics"), _object, read_timeout_s=STATISTICS_S)


def _object(reply: Reply) -> dict[str, Any]:
    data = reply.json()
    if not isinstance(data, dict):
        raise UnexpectedReply(f"Expected an object, got {str(data)[:200]!r}.")
    return data


def events(job_id: str, after: str, left_s: float) -> Call[None]:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    if after:
        headers["Last-Event-ID"] = after
    return Call("GET", _path(job_id, "/events"), headers=headers, read_timeout_s=min(SILENCE_S, left_s))


def listing(name: str) -> Call[list[dict[str, Any]]]:
    """List `queues`, `devices`, `workers`, `scorers`, `profiles` or `rewards`."""

    def parse(reply: Reply) -> list[dict[str, Any]]:
        data = reply.json()
        rows = data.get(name) if isinstance(data, dict) else data
        if not isinstance(rows, list):
            raise UnexpectedReply(f"Expected a list of {name}, got {str(data)[:200]!r}.")
        return rows

    return Call("GET", f"/v1/{name}", parse)


def benchmarks() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/benchmarks", _object)


def run_benchmark(name: str, options: Upload) -> Call[dict[str, Any]]:
    """Start a benchmark. Not idempotent: a second call would conflict with the running first benchmark."""
    path = f"/v1/benchmarks/{quote(name, safe='')}/runs"
    return Call("POST", path, _object, headers=options.headers, body=options, repeatable=False)


def benchmark_run(run_id: str) -> Call[dict[str, Any]]:
    return Call("GET", f"/v1/benchmarks/runs/{quote(run_id, safe='')}", _object)


def benchmark_file(run_id: str, name: str) -> Call[bytes]:
    path = f"/v1/benchmarks/runs/{quote(run_id, safe='')}/files/{quote(name, safe='')}"
    return Call("GET", path, lambda reply: reply.content)


def pool_status() -> Call[dict[str, Any]]:
    return Call("GET", "/pool_status", _object)


def raw_reply(path: str, accepted: tuple[int, ...] = ()) -> Call[Reply]:
    """Get a path and return the reply without parsing it."""
    return Call("GET", path, lambda reply: reply, accepted=accepted)
