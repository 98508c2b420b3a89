"""The commands on jobs: score, submit, status, watch, results, ... Each returns its exit code."""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any, Callable

from assay import submission
from assay.cli import exits, files, summary
from assay.cli.progress_view import ProgressView, reason_lines
from assay.cli.session import Session
from assay.client import Job
from assay.errors import AssayError
from assay.model import Row
from assay.submission import Options


def score(session: Session) -> int:
    args = session.args
    spec: dict[str, Any] = submission.score_spec(args.scorer, args.spec)
    job = _submit(session, "score", spec)
    _note(session, f"{job.id}: submitted")
    return _finish(session, job, args.output)


def submit(session: Session) -> int:
    job = _submit(session, session.args.kind, session.args.spec or {})
    if session.args.wait:
        _note(session, f"{job.id}: submitted")
        return _finish(session, job, session.args.output)
    if session.screen.as_json:
        session.screen.json(dict(job.view.raw))
    else:
        session.screen.line(job.id)  # print nothing else, for job=$(assay submit ...)
    return exits.OK


def _submit(session: Session, kind: str, spec: dict[str, Any]) -> Job:
    args = session.args
    client, items = session.client, files.items(args.file)
    session.key = args.key or str(uuid.uuid4())
    options: Options = {"idempotency_key": session.key, "priority": args.priority, "cache": args.cache}
    if args.on_error is not None:
        options["on_error"] = args.on_error
    if args.deadline_s is not None:
        options["deadline_s"] = args.deadline_s
    if args.max_failed_share is not None:
        options["max_failed_share"] = args.max_failed_share
    if args.slots is not None:
        options["slots"] = args.slots
    if args.metadata:
        options["metadata"] = args.metadata
    job = client.submit(kind, items, spec, **options)
    session.job_id = job.id
    return job


def _finish(session: Session, job: Job, output: str | None) -> int:
    """Wait for the job, write its rows to the output, and print a summary."""
    job.wait(session.args.timeout, raise_on_failure=False)
    statistics = summary.RowStatistics()
    if output == "-":
        for row in job.results():
            _write(row)
            statistics.add(row)
        _note(session, summary.one_line(job.view))
    elif output:
        files.save(job, output, statistics.add)
    else:
        for row in job.results():
            statistics.add(row)
    if output != "-":
        summary.show(session.screen, job.view, statistics)
    return _code(job)


def _code(job: Job) -> int:
    return exits.OK if job.state == "done" and not job.view.failed else exits.FAILED


def status(session: Session) -> int:
    args, screen = session.args, session.screen
    if args.job:
        view = session.client.job(args.job).view
        screen.json(dict(view.raw)) if screen.as_json else summary.details(screen, view)
        return exits.OK
    views = list(session.client.jobs(args.kind, args.state, args.limit))
    screen.json([dict(view.raw) for view in views]) if screen.as_json else summary.listing(screen, views)
    return exits.OK


def watch(session: Session) -> int:
    job = session.client.job(session.args.job)
    session.job_id = job.id
    progress = session.progress = ProgressView(reason_lines)
    for view in job.watch(session.args.timeout):
        progress.update(view)
    progress.clear()
    if session.screen.as_json:
        session.screen.json(dict(job.view.raw))
    else:
        session.screen.line(summary.one_line(job.view))
    return _code(job)


def results(session: Session) -> int:
    args, screen = session.args, session.screen
    job = session.client.job(args.job)
    session.job_id = job.id
    if args.output and args.output != "-":
        if args.now:
            raise AssayError("--now and -o FILE cannot be combined, as -o writes only complete files: remove one flag.")
        job.wait(args.timeout, raise_on_failure=False)
        statistics = summary.RowStatistics()
        files.save(job, args.output, statistics.add)
        _note(session, f"{args.output}: {statistics.rows} rows, {statistics.valid} valid")
        return _code(job)
    if not args.now:
        job.wait(args.timeout, raise_on_failure=False)
    as_table = screen.is_terminal and not screen.as_json and args.output != "-"
    if as_table:
        screen.line(screen.paint(f"{'index':>7}  {'id':<24}  {'status':<9}  {'score':>8}  detail", "dim"))
    for row in job.results(args.start, args.limit, wait=False):
        screen.line(_line(session, row)) if as_table else _write(row)
    return exits.OK if args.now else _code(job)


def calibration(session: Session) -> int:
    screen, result = session.screen, session.client.job(session.args.job).calibration()
    screen.json(dict(result.raw)) if screen.as_json else summary.calibration(screen, result)
    return exits.OK


def _line(session: Session, row: Row) -> str:
    shown = "" if row.score is None else f"{row.score:.4g}"
    detail = f"{row.error.type}: {row.error.message}" if row.error else _short(row.value)
    status = session.screen.paint(f"{row.status:<9}")
    return f"{row.index:>7}  {(row.id or ''):<24}  {status}  {shown:>8}  {' '.join(detail.split())[:120]}".rstrip()


def _short(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _write(row: Row) -> None:
    sys.stdout.buffer.write(files.encode(row))


def cancel(session: Session) -> int:
    return _each(session, Job.purge if session.args.purge else Job.cancel)


def retry(session: Session) -> int:
    return _each(session, Job.retry)


def _each(session: Session, action: Callable[[Job], Job]) -> int:
    views = []
    for name in session.args.jobs:
        views.append(action(session.client.job(name)).view)
        if not session.screen.as_json:
            session.screen.line(summary.one_line(views[-1]))
    if session.screen.as_json:
        session.screen.json([dict(view.raw) for view in views])
    return exits.OK


def _note(session: Session, text: str) -> None:
    """Print a note to stderr if it is a terminal, so that logs stay short."""
    if sys.stderr.isatty() and not session.screen.as_json:
        print(text, file=sys.stderr)
