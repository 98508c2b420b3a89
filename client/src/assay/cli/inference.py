"""The commands `assay infer`, `assay contexts` and `assay pipeline`: read and write files. Each returns its exit code.

The `check_*` functions validate flags, environment variables and files before any work starts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from assay.cli import exits, inference_run
from assay.cli import inference_flags as flags
from assay.cli.inference_flags import WorkerPlan
from assay.cli.session import CHECK_ONLY, Session
from assay.errors import ConnectionFailed
from assay.inference import retrieval, rows, shards
from assay.inference.documents import Documents, Embed


def check_infer(session: Session) -> None:
    """Validate the command line of `assay infer`. Raise ValueError with the cause."""
    args = session.args
    _check_run(session, "contexts_file")
    flags.require_readable(args.contexts_file)
    for flag in ("resume_from_existing", "skip_inference"):
        if getattr(args, flag):
            flags.require_local(args.contexts_file, flag)


def check_contexts(session: Session) -> None:
    """Validate the command line of `assay contexts`. Raise ValueError with the cause."""
    args = session.args
    flags.require(args, "queries_file", "documents_file", "output_file")
    flags.require_writable(args.output_file, args.queries_file, args.documents_file)
    _check_sources(session)


def check_pipeline(session: Session) -> None:
    """Validate the command line of `assay pipeline`. Raise ValueError with the cause."""
    args = session.args
    _check_run(session, "queries_file", "documents_file")
    if args.output_file:
        flags.require_writable(_contexts_path(session), args.queries_file, args.documents_file, args.output_file)
    _check_sources(session)


def infer(session: Session) -> int:
    args = session.args
    if args.skip_inference:
        return _show_division(session, rows.count(args.contexts_file))
    return inference_run.run(session, args.contexts_file, WorkerPlan.of(args, os.environ))


def contexts(session: Session) -> int:
    path = session.args.output_file
    counts = _make_contexts(session, path)
    if session.screen.as_json:
        session.screen.json({"output_file": path, "rows": sum(counts.values()), **counts})
    return exits.FAILED if counts["failed"] else exits.OK


def pipeline(session: Session) -> int:
    args = session.args
    if args.skip_inference:
        return _show_division(session, rows.count(args.queries_file))
    path = _contexts_path(session)
    _make_contexts(session, path)
    return inference_run.run(session, path, WorkerPlan.of(args, os.environ))


def _check_run(session: Session, *needed: str) -> None:
    args = session.args
    WorkerPlan.of(args, os.environ)
    if os.environ.get(CHECK_ONLY):
        flags.require_model(args)
    flags.require_sampling_temperature(args)
    flags.require(args, *needed, *(() if args.skip_inference else ("output_file",)))
    inputs = [getattr(args, name) for name in needed]
    for path in filter(None, (args.output_file, args.statistics_file)):
        flags.require_writable(path, *inputs)


def _check_sources(session: Session) -> None:
    args = session.args
    flags.require_readable(args.queries_file)
    flags.require_readable(args.documents_file)
    retrieval.check_queries(args.queries_file)
    Documents(args.documents_file)


def _contexts_path(session: Session) -> str:
    args = session.args
    return str(args.contexts_file or f"{os.path.splitext(args.output_file)[0]}_contexts.jsonl")


def _show_division(session: Session, number: int) -> int:
    screen, plan = session.screen, WorkerPlan.of(session.args, os.environ)
    workers = plan.workers or _slots(session)
    shares = shards.shares(
        min(number, session.args.limit or number), workers, plan.gpus, plan.gpus_per_worker, plan.max_rows_per_worker
    )
    if screen.as_json:
        screen.json(
            [
                {"worker": share.worker, "rows": len(share.rows), "first": share.rows.start, "gpus": list(share.gpus)}
                for share in shares
            ]
        )
        return exits.OK
    screen.line(f"{number} rows, {workers} workers, {plan.gpus} GPUs")
    screen.table(
        ("worker", "rows", "from", "to", "GPUs"),
        [
            (
                share.worker,
                len(share.rows),
                share.rows.start if share.rows else "",
                share.rows[-1] if share.rows else "",
                ", ".join(map(str, share.gpus)) or "none",
            )
            for share in shares
        ],
    )
    screen.line(
        "No row was run. This is the division among equally fast workers; a run dispatches each row to a free worker."
    )
    return exits.OK


def _slots(session: Session) -> int:
    try:
        return max(1, len(session.client.devices()))
    except ConnectionFailed:
        raise ValueError(
            "--num_workers is missing, and the server does not respond with its number of workers: give --num_workers"
        ) from None


def _make_contexts(session: Session, path: str) -> Counter[str]:
    """Write the contexts file atomically. Return the number of rows by retrieval method."""
    args, counts = session.args, Counter[str](exact_api_match=0, embedding_similarity=0, failed=0)
    documents = Documents(args.documents_file)
    found = retrieval.contexts(
        args.queries_file, documents, _embed(session), args.documents_per_query, args.min_similarity
    )
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        for row in found:
            counts[row["retrieval_method"] if row["success"] else "failed"] += 1
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    os.replace(f"{path}.part", path)
    if not session.screen.as_json:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        session.screen.line(f"{path}: {sum(counts.values())} contexts ({listed})")
    return counts


def _embed(session: Session) -> Embed:
    """Return a function that embeds texts on the server, with an inference job of the task `embed`."""

    def embed(texts: Iterable[str]) -> Iterator[Sequence[float] | str]:
        spec = {"task": "embed", "model": session.args.embedding_model}
        job = session.client.submit("inference", ({"query": text} for text in texts), spec)
        session.job_id = job.id
        for row in job.results():
            yield row.value["embedding"] if row.valid else row.error.message if row.error else row.status
        session.job_id = ""

    return embed
