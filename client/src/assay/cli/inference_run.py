"""A run of `assay infer`: submits the rows, writes the answers as they arrive, and prints the statistics."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from contextlib import closing
from typing import Any, Callable

from assay import upload
from assay.cli import exits, files
from assay.cli import inference_flags as flags
from assay.cli.inference_flags import WorkerPlan
from assay.cli.progress_view import ProgressView, worker_lines
from assay.cli.session import Session
from assay.client import Job
from assay.inference import rows, statistics
from assay.inference.output import OutputFile, divide, rewrite
from assay.inference.resume import ByteRange, Comparison, ResumeIndex
from assay.model import JobView
from assay.submission import Options
from assay.upload import Items

#: Seconds between two progress lines of `--verbose`.
_VERBOSE_EVERY_S = 5.0


def run(session: Session, contexts: str, plan: WorkerPlan) -> int:
    args = session.args
    spec = flags.spec_of(args, plan)
    session.hint = (
        f"The rows answered so far are in {args.output_file}; "
        "the same command with --resume_from_existing runs the remaining rows."
    )
    _compare_workers(session, plan)
    with OutputFile.opened(args.output_file) as output:
        if args.resume_from_existing:
            with closing(ResumeIndex()) as resume:
                return _resume(session, contexts, plan, spec, output, resume)
        job = _submit(session, _items(contexts, _row_limit(session, plan)), spec)
        output.begin()
        _write(session, job, output)
        output.finish()
    return _finish(session, job)


def _items(contexts: str, most: int | None) -> Items:
    """Return the file itself, or only its first `most` rows if the client can read it and the server would ignore the
    others."""
    if "://" in contexts:
        return contexts
    if most is None or contexts == "-" or contexts.endswith(".zst"):
        return files.items(contexts)
    return upload.of_lines(lambda: rows.first_rows(contexts, most))


def _resume(
    session: Session, contexts: str, plan: WorkerPlan, spec: dict[str, Any], output: OutputFile, resume: ResumeIndex
) -> int:
    found = resume.compare(contexts, output.path, _row_limit(session, plan))
    print(f"assay: {output.path}: {describe(found)}", file=sys.stderr)
    job = None
    if found.missing:
        # The limits are already applied to the whole file; the server receives only the missing rows.
        rest = {name: value for name, value in spec.items() if name not in ("limit", "max_samples_per_worker")}
        job = _submit(session, upload.of_lines(lambda: resume.unanswered(contexts)), rest)
    output.begin(found.good_bytes, found.lacks_end)
    for n, line in resume.copies(contexts, output.path):
        resume.add_copy(n, output.append(line))
    if job:
        _write(session, job, output, resume.add_row)
    if not resume.is_in_order(output.finish()):
        rewrite(output.path, resume.in_order())
    return _finish(session, job, found.kept + found.copied)


def describe(found: Comparison) -> str:
    text = f"{found.kept} of {found.wanted} rows are answered, {found.missing} will run"
    if found.copied:
        text += f", {found.copied} take the answer of the first row with their dedup_key"
    if found.failed:
        text += f" ({found.failed} of them failed before)"
    dropped = [
        f"{number} {word if number == 1 else words}"
        for number, word, words in (
            (found.foreign, "row of another input or a second answer", "rows of other inputs or second answers"),
            (found.unreadable, "line that is not a row", "lines that are not rows"),
            (int(found.is_cut), "truncated last line", ""),
        )
        if number
    ]
    return f"{text}; dropped: {', '.join(dropped)}" if dropped else text


def _row_limit(session: Session, plan: WorkerPlan) -> int | None:
    """Return the number of rows that the server would run of the whole file; None for every row."""
    limits = [session.args.limit]
    if plan.max_rows_per_worker:
        limits.append(plan.max_rows_per_worker * max(1, len(session.client.devices())))
    return min((limit for limit in limits if limit), default=None)


def _compare_workers(session: Session, plan: WorkerPlan) -> None:
    if plan.workers and plan.workers != (slots := len(session.client.devices())):
        text = f"assay: {plan.workers} workers were requested; the server has {slots} workers and uses {slots}"
        print(text, file=sys.stderr)


def _submit(session: Session, items: Items, spec: dict[str, Any]) -> Job:
    args, client = session.args, session.client
    session.key = args.key or str(uuid.uuid4())
    options: Options = {"idempotency_key": session.key, "priority": args.priority, "cache": args.cache}
    job = client.submit("inference", items, spec, **options)
    session.job_id = job.id
    _print_verbose(session, f"job {job.id}: {job.view.total} rows, {json.dumps(spec, ensure_ascii=False)}")
    return job


def _write(
    session: Session, job: Job, output: OutputFile, on_row: Callable[[int, ByteRange], None] | None = None
) -> None:
    """Append the job's rows to the output as they arrive, until the job has ended."""
    progress, count, printed_at = ProgressView(worker_lines), 0, float("-inf")
    try:
        for event in job.follow(timeout_s=session.args.timeout):
            if isinstance(event, JobView):
                output.flush()
                progress.update(event)
                if event.ended or time.monotonic() - printed_at > _VERBOSE_EVERY_S:
                    printed_at = time.monotonic()
                    text = f"{event.state}: {event.settled} of {event.total} rows, {event.failed} failed"
                    _print_verbose(session, text)
                continue
            written = output.append(event)
            if on_row:
                on_row(count, written)
            count += 1
            if session.args.verbose:
                _print_failure(session, count, event)
    finally:
        progress.clear()


def _finish(session: Session, job: Job | None, kept: int = 0) -> int:
    args, screen = session.args, session.screen
    session.hint = ""
    by_rank = divide(args.output_file) if args.per_worker_files else {}
    report: dict[str, Any] = {"job": None, "output_file": args.output_file, "kept": kept, "workers": [], "total": None}
    if job:
        report = {**report, "job": job.id, "state": job.state, **job.statistics()}
    if by_rank:
        report["per_worker_files"] = {str(rank): path for rank, path in by_rank.items()}
    if args.statistics_file:
        with open(args.statistics_file, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2, ensure_ascii=False)
            file.write("\n")
    if screen.as_json:
        screen.json(report)
    elif job:
        names = {rank: os.path.basename(path) for rank, path in by_rank.items()}
        screen.line(statistics.blocks(report, args.output_file, names))
    if job is None:
        return exits.OK
    if job.view.reason:
        print(f"assay: job {job.id} {job.state}: {job.view.reason}", file=sys.stderr)
    return exits.OK if job.state == "done" and not job.view.failed else exits.FAILED


def _print_verbose(session: Session, text: str) -> None:
    if session.args.verbose:
        print(f"assay: {text}", file=sys.stderr)


def _print_failure(session: Session, number: int, line: bytes) -> None:
    row = rows.parse(line) or {}
    if row.get("success") is False:
        _print_verbose(session, f"row {number} of the job ({row.get('id')}): {row.get('error')}")
