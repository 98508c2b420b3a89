"""`/v1/benchmarks`: list and start benchmarks, and read their runs, reports and the history of each figure."""

import mimetypes
from dataclasses import asdict
from typing import Any

from flask import Blueprint, Response, request

from config.schedule import parse_schedule
from tasks.deployment_benchmarks.catalogue import BENCHMARKS
from tasks.deployment_benchmarks.figure_history import SHOWN, FigureOfRun
from tasks.deployment_benchmarks.model import RUN_ID, RunOptions
from tasks.deployment_benchmarks.report import file_path
from tasks.deployment_benchmarks.run_history import MOST_RUNS, Run
from tasks.errors import StoredFileMissing, UnknownBenchmark
from web.benchmarks.schemas import BenchmarkList, FigureList, RunList, RunsQuery, RunView, RunWithFigures
from web.http.http_error import HttpError
from web.http.json_bodies import read_json
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.services import services

blueprint = Blueprint("benchmarks", __name__, url_prefix="/v1/benchmarks")


@blueprint.get("")
@described("List the benchmarks, their schedules, and the figures that regressed.", {200: BenchmarkList})
def listing() -> Response:
    runs = services().runs
    newest, now = runs.newest(SHOWN), runs.history.now()
    schedule = parse_schedule(services().settings.benchmarks)
    rows = []
    for name, benchmark in BENCHMARKS.items():
        due, last = [each for each in schedule if each.name == name], next((r for r in newest if r.name == name), None)
        rows.append(
            {
                "name": name,
                "description": benchmark.description,
                "scenarios": list(benchmark.scenarios),
                "repetitions": benchmark.repetitions,
                "schedule": "; ".join(each.fields for each in due) or None,
                "next_at": min((each.next_at(now) for each in due), default=None),
                "last_run": _view(last) if last else None,
            }
        )
    worse = [
        _figure(each.figure) | {"run": each.run, "benchmark": each.benchmark} for each in runs.figures.regressions()
    ]
    return json_response({"benchmarks": rows, "regressions": worse})


@blueprint.post("/<name>/runs")
@described(
    "Start a benchmark: a set (`quick`, `full`) or a scenario. It has the lowest priority, and runs alone.",
    {202: RunView},
    errors=(400, 404, 408, 409, 413, 415, 422),
    body=RunOptions,
    may_lack_body=True,
)
def start(name: str) -> Response:
    options = read_json(RunOptions)[0] if request.content_length or request.mimetype else RunOptions()
    run = services().runs.start(name, options)
    response = json_response(_view(run), 202)
    response.headers["Location"] = f"/v1/benchmarks/runs/{run.id}"
    return response


@blueprint.get("/runs")
@described("List runs, newest first, skipped runs included.", {200: RunList}, query=RunsQuery, errors=(422,))
def runs() -> Response:
    query = read_query(RunsQuery)
    newest = services().runs.newest(MOST_RUNS if query.name else query.limit)
    found = [run for run in newest if query.name in (None, run.name)]
    return json_response({"runs": [_view(run) for run in found[: query.limit]]})


@blueprint.get("/runs/<run_id>")
@described("Read a run and its figures.", {200: RunWithFigures}, errors=(404,))
def look(run_id: str) -> Response:
    run = _find(run_id)
    return json_response(_view(run) | {"figures": [_figure(each) for each in services().runs.figures.of_run(run.id)]})


@blueprint.get("/runs/<run_id>/files/<name>")
@described(
    "Download a file of a run's report, by its name in the run.",
    {200: ("text/markdown", "text/plain", "application/json", "image/png")},
    errors=(404,),
)
def file(run_id: str, name: str) -> Response:
    run = _find(run_id)
    try:
        if name not in run.files:
            raise StoredFileMissing
        body = services().core.storage.read(file_path(run.folder, name))
    except StoredFileMissing as error:
        detail = "The run has no file of this name; its `files` has the names."
        raise HttpError(404, "unknown_file", "Unknown file", detail) from error
    kind = "text/markdown" if name.endswith(".md") else mimetypes.guess_type(name)[0] or "text/plain"
    return Response(body, mimetype=kind)


@blueprint.get("/figures")
@described("Read the history of every figure, with its noise band.", {200: FigureList})
def figures() -> Response:
    known = services().runs.figures
    standings = known.latest()
    rows = []
    for standing, points in zip(standings, known.points([each.figure for each in standings]), strict=True):
        newest = standing.figure
        rows.append(
            {
                "figure": newest.figure,
                "basis": newest.basis,
                "benchmark": standing.benchmark,
                "unit": newest.unit,
                "better": newest.better,
                "band": None if newest.low is None else (newest.low, newest.high),
                "is_regression": newest.is_regression,
                "points": [asdict(each) for each in points],
            }
        )
    return json_response({"figures": rows})


def _find(run_id: str) -> Run:
    if not RUN_ID.fullmatch(run_id):
        raise UnknownBenchmark(f"Benchmark run {run_id[:64]!r} does not exist; GET /v1/benchmarks/runs lists the runs.")
    return services().runs.get(run_id)


def _view(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "note": run.note,
        "trigger": run.trigger,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "job_id": run.job or None,
        "total": run.total,
        "done": services().runs.done(run),
        "regressions": run.regressions,
        "files": list(run.files),
    }


def _figure(figure: FigureOfRun) -> dict[str, Any]:
    return asdict(figure)
