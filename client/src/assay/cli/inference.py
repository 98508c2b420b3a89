"""`assay infer`, `assay contexts` and `assay pipeline`: files in, files out. Each returns its exit code."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from assay.cli import exits, inference_run
from assay.cli import inference_flags as flags
from assay.cli.inference_flags import Fleet
from assay.cli.session import CHECK_ONLY, Session
from assay.errors import ConnectionFailed
from assay.inference import division, retrieval, rows
from assay.inference.documents import Documents, Embed


def check_infer(session: Session) -> None:
    """What can be wrong with flags, variables and files: said before any work. So do the other two."""
    args = session.args
    _check_run(session, "contexts_file")
    flags.require_readable(args.contexts_file)
    for flag in ("resume_from_existing", "skip_inference"):
        if getattr(args, flag):
            flags.require_here(args.contexts_file, flag)


def check_contexts(session: Session) -> None:
    args = session.args
    flags.require(args, "queries_file", "documents_file", "output_file")
    flags.require_writable(args.output_file, args.queries_file, args.documents_file)
    _check_sources(session)


def check_pipeline(session: Session) -> None:
    args = session.args
    _check_run(session, "queries_file", "documents_file")
    if args.output_file:
        flags.require_writable(_contexts_path(session), args.queries_file, args.documents_file, args.output_file)
    _check_sources(session)


def infer(session: Session) -> int:
    args = session.args
    if args.skip_inference:
        return _show_division(session, rows.count(args.contexts_file))
    return inference_run.run(session, args.contexts_file, Fleet.of(args, os.environ))


def contexts(session: Session) -> int:
    path = session.args.output_file
    found = _make_contexts(session, path)
    if session.screen.as_json:
        session.screen.json({"output_file": path, "rows": sum(found.values()), **found})
    return exits.FAILED if found["failed"] else exits.OK


def pipeline(session: Session) -> int:
    args = session.args
    if args.skip_inference:
        return _show_division(session, rows.count(args.queries_file))
    path = _contexts_path(session)
    _make_contexts(session, path)
    return inference_run.run(session, path, Fleet.of(args, os.environ))


def _check_run(session: Session, *needed: str) -> None:
    args = session.args
    Fleet.of(args, os.environ)
    if os.environ.get(CHECK_ONLY):
        flags.require_model(args)
    flags.require_draws(args)
    flags.require(args, *needed, *(() if args.skip_inference else ("output_file",)))
    read = [getattr(args, name) for name in needed]
    for path in filter(None, (args.output_file, args.statistics_file)):
        flags.require_writable(path, *read)


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
    screen, fleet = session.screen, Fleet.of(session.args, os.environ)
    workers = fleet.workers or _slots(session)
    shares = division.shares(
        min(number, session.args.limit or number), workers, fleet.gpus, fleet.gpus_per_worker, fleet.most_each
    )
    if screen.as_json:
        screen.json(
            [
                {"worker": share.worker, "rows": len(share.rows), "first": share.rows.start, "gpus": list(share.gpus)}
                for share in shares
            ]
        )
        return exits.OK
    screen.line(f"{number} rows, {workers} workers, {fleet.gpus} GPUs")
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
    screen.line("Nothing was run. A run gives rows to whichever worker is free; so it goes if all are equally fast.")
    return exits.OK


def _slots(session: Session) -> int:
    try:
        return max(1, len(session.client.devices()))
    except ConnectionFailed:
        raise ValueError("--num_workers is missing, and no server answers that could tell how many there are") from None


def _make_contexts(session: Session, path: str) -> Counter[str]:
    """Write the contexts file, whole or not at all. Gives the number of rows by how their context was found."""
    args, found = session.args, Counter[str](exact_api_match=0, embedding_similarity=0, failed=0)
    documents = Documents(args.documents_file)
    made = retrieval.contexts(
        args.queries_file, documents, _embed(session), args.documents_per_query, args.min_similarity
    )
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        for row in made:
            found[row["retrieval_method"] if row["success"] else "failed"] += 1
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    os.replace(f"{path}.part", path)
    if not session.screen.as_json:
        counts = ", ".join(f"{name} {count}" for name, count in found.items())
        session.screen.line(f"{path}: {sum(found.values())} contexts ({counts})")
    return found


def _embed(session: Session) -> Embed:
    """Vectors by the server: an inference job that embeds."""

    def embed(texts: Iterable[str]) -> Iterator[Sequence[float] | str]:
        spec = {"task": "embed", "model": session.args.embedding_model}
        job = session.client.submit("inference", ({"query": text} for text in texts), spec)
        session.job_id = job.id
        for row in job.results():
            yield row.value["embedding"] if row.valid else row.error.message if row.error else row.status
        session.job_id = ""

    return embed
