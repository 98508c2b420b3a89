"""One run of `assay infer`: rows sent, answers written as they come, and what it all came to."""

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
from assay.cli.board import Board, worker_lines
from assay.cli.inference_flags import Fleet
from assay.cli.session import Session
from assay.client import Job
from assay.inference import block, rows
from assay.inference.output import OutputFile, divide, rewrite
from assay.inference.resume import Findings, Place, Resume
from assay.model import JobView
from assay.submission import Options
from assay.upload import Items

#: Seconds between two lines of progress where somebody wants to read what happens.
_SAY_S = 5.0


def run(session: Session, contexts: str, fleet: Fleet) -> int:
    args = session.args
    spec = flags.spec_of(args, fleet)
    session.hint = (
        f"What is answered so far is in {args.output_file}: the same command with --resume_from_existing does the rest."
    )
    _compare_workers(session, fleet)
    with OutputFile.opened(args.output_file) as output:
        if args.resume_from_existing:
            with closing(Resume()) as resume:
                return _go_on(session, contexts, fleet, spec, output, resume)
        job = _submit(session, _items(contexts, _most_rows(session, fleet)), spec)
        output.begin()
        _write(session, job, output)
        output.finish()
    return _finish(session, job)


def _items(contexts: str, most: int | None) -> Items:
    """The file as it is; no more of it than the server would take, where it can be read here."""
    if "://" in contexts:
        return contexts
    if most is None or contexts == "-" or contexts.endswith(".zst"):
        return files.items(contexts)
    return upload.of_lines(lambda: rows.first(contexts, most))


def _go_on(
    session: Session, contexts: str, fleet: Fleet, spec: dict[str, Any], output: OutputFile, resume: Resume
) -> int:
    found = resume.compare(contexts, output.path, _most_rows(session, fleet))
    print(f"assay: {output.path}: {told(found)}", file=sys.stderr)
    job = None
    if found.missing:
        # Which rows there may be is settled: the server sees only some of them.
        rest = {name: value for name, value in spec.items() if name not in ("limit", "max_samples_per_worker")}
        job = _submit(session, upload.of_lines(lambda: resume.unanswered(contexts)), rest)
    output.begin(found.good_bytes, found.lacks_end)
    for n, line in resume.copies(contexts, output.path):
        resume.note_copy(n, output.append(line))
    if job:
        _write(session, job, output, resume.note)
    if not resume.is_in_order(output.finish()):
        rewrite(output.path, resume.in_order())
    return _finish(session, job, found.kept + found.copied)


def told(found: Findings) -> str:
    text = f"{found.kept} of {found.wanted} rows are answered, {found.missing} are run"
    if found.copied:
        text += f", {found.copied} take the answer of the first row of their dedup_key"
    if found.failed:
        text += f" ({found.failed} of them failed before)"
    dropped = [
        f"{number} {word if number == 1 else words}"
        for number, word, words in (
            (found.foreign, "row of another input, or of an answered row", "rows of other inputs, or of answered rows"),
            (found.unreadable, "line that is no row", "lines that are no rows"),
            (int(found.is_cut), "last line, which was cut off", ""),
        )
        if number
    ]
    return f"{text}; dropped: {', '.join(dropped)}" if dropped else text


def _most_rows(session: Session, fleet: Fleet) -> int | None:
    """As many as the server would take of the whole file."""
    limits = [session.args.limit]
    if fleet.most_each:
        limits.append(fleet.most_each * max(1, len(session.client.devices())))
    return min((limit for limit in limits if limit), default=None)


def _compare_workers(session: Session, fleet: Fleet) -> None:
    if fleet.workers and fleet.workers != (slots := len(session.client.devices())):
        print(f"assay: {fleet.workers} workers were asked for; the server has {slots} and uses them", file=sys.stderr)


def _submit(session: Session, items: Items, spec: dict[str, Any]) -> Job:
    args, client = session.args, session.client
    session.key = args.key or str(uuid.uuid4())
    options: Options = {"idempotency_key": session.key, "priority": args.priority, "cache": args.cache}
    job = client.submit("inference", items, spec, **options)
    session.job_id = job.id
    _say(session, f"job {job.id}: {job.view.total} rows, {json.dumps(spec, ensure_ascii=False)}")
    return job


def _write(session: Session, job: Job, output: OutputFile, note: Callable[[int, Place], None] | None = None) -> None:
    """Append the job's rows as they come, until it has ended."""
    board, place, said_at = Board(worker_lines), 0, float("-inf")
    try:
        for told in job.follow(timeout_s=session.args.timeout):
            if isinstance(told, JobView):
                output.flush()
                board.update(told)
                if told.ended or time.monotonic() - said_at > _SAY_S:
                    said_at = time.monotonic()
                    _say(session, f"{told.state}: {told.settled} of {told.total} rows, {told.failed} failed")
                continue
            where = output.append(told)
            if note:
                note(place, where)
            place += 1
            if session.args.verbose:
                _say_failure(session, place, told)
    finally:
        board.clear()


def _finish(session: Session, job: Job | None, kept: int = 0) -> int:
    args, screen = session.args, session.screen
    session.hint = ""
    by_rank = divide(args.output_file) if args.per_worker_files else {}
    told: dict[str, Any] = {"job": None, "output_file": args.output_file, "kept": kept, "workers": [], "total": None}
    if job:
        told = {**told, "job": job.id, "state": job.state, **job.statistics()}
    if by_rank:
        told["per_worker_files"] = {str(rank): path for rank, path in by_rank.items()}
    if args.statistics_file:
        with open(args.statistics_file, "w", encoding="utf-8") as file:
            json.dump(told, file, indent=2, ensure_ascii=False)
            file.write("\n")
    if screen.as_json:
        screen.json(told)
    elif job:
        screen.line(block.blocks(told, args.output_file, {rank: os.path.basename(by_rank[rank]) for rank in by_rank}))
    if job is None:
        return exits.OK
    if job.view.reason:
        print(f"assay: job {job.id} {job.state}: {job.view.reason}", file=sys.stderr)
    return exits.OK if job.state == "done" and not job.view.failed else exits.FAILED


def _say(session: Session, text: str) -> None:
    if session.args.verbose:
        print(f"assay: {text}", file=sys.stderr)


def _say_failure(session: Session, number: int, line: bytes) -> None:
    row = rows.read(line) or {}
    if row.get("success") is False:
        _say(session, f"row {number} of the job ({row.get('id')}): {row.get('error')}")
