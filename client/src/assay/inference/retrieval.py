"""Retrieval step before inference: finds a context for each question among the documents.

It matches by the name of an API if a document has that name, otherwise by the similarity of embeddings, which the
server computes.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from assay.inference import rows
from assay.inference.documents import Documents, Embed, normalize, parse_line

#: Number of questions embedded per job.
PAGE = 1000


@dataclass(frozen=True)
class RetrievedContext:
    api: str = ""
    method: str | None = None
    context: str = ""
    error: str = ""


def check_queries(path: str) -> int:
    """Validate a queries file and return its number of questions. Raise ValueError, with the line number."""
    number = 0
    for line in rows.lines(path):
        if not line.is_blank:
            parse_line(path, line, "query", "target_api")
            number += 1
    return number


def contexts(
    path: str, documents: Documents, embed: Embed, per_query: int, min_similarity: float
) -> Iterator[dict[str, Any]]:
    """Yield a row of a contexts file for each question, in order."""
    queries = (rows.parse(line.content) or {} for line in rows.lines(path) if not line.is_blank)
    numbered = enumerate(queries)
    while page := list(islice(numbered, PAGE)):
        found = {n: _by_name(documents, row, per_query) for n, row in page}
        unmatched = [(n, row["query"]) for n, row in page if found[n] is None]
        similar = _by_similarity(documents, [query for _, query in unmatched], embed, per_query, min_similarity)
        found.update(zip((n for n, _ in unmatched), similar))
        for n, row in page:
            result = found[n]
            assert result is not None
            yield _context_row(n, row, *result)


def _by_name(documents: Documents, row: dict[str, Any], most: int) -> tuple[RetrievedContext, float] | None:
    began = time.perf_counter()
    api = row.get("target_api")
    indices = documents.of_api(api, most) if api else []
    if not indices:
        return None
    context = "\n\n".join(str(document["text"]) for document in documents.read(indices))
    return RetrievedContext(str(api), "exact_api_match", context), time.perf_counter() - began


def _by_similarity(
    documents: Documents, queries: Sequence[str], embed: Embed, most: int, min_similarity: float
) -> Iterator[tuple[RetrievedContext, float]]:
    if not queries:
        return
    if not len(documents):
        yield from ((RetrievedContext(error="There are no documents."), 0.0) for _ in queries)
        return
    documents.vectors(embed)  # computed before the clock starts: it is not part of a question's retrieval time
    began = time.perf_counter()
    vectors = [normalize(each) for each in embed(queries)]
    share = (time.perf_counter() - began) / len(queries)
    for vector in vectors:
        began = time.perf_counter()
        yield _nearest(documents, vector, embed, most, min_similarity), share + time.perf_counter() - began


def _nearest(
    documents: Documents, vector: array[float] | str, embed: Embed, most: int, min_similarity: float
) -> RetrievedContext:
    if isinstance(vector, str):
        return RetrievedContext(error=f"The question could not be embedded: {vector}")
    nearest = documents.nearest(vector, most, embed)
    near = [index for similarity, index in nearest if similarity >= min_similarity]
    if not near:
        best = f"the highest similarity is {nearest[0][0]:.2f}, the minimum is {min_similarity:g}"
        return RetrievedContext(error=f"No document is similar enough: {best}.")
    chosen = list(documents.read(near))
    context = "\n\n".join(str(document["text"]) for document in chosen)
    return RetrievedContext(str(chosen[0].get("api") or ""), "embedding_similarity", context)


def _context_row(n: int, row: dict[str, Any], found: RetrievedContext, seconds: float) -> dict[str, Any]:
    name = row["id"] if row.get("id") is not None else f"item_{n}"
    made = {
        "id": name,
        "original_item_id": row.get("original_item_id", name),
        "query_index": row.get("query_index", 0),
        "dedup_key": row.get("dedup_key") or f"{row['query']}_{row.get('target_api') or found.api}",
        "query": row["query"],
        "target_api": row.get("target_api") or found.api,
        "dependencies": row.get("dependencies") or {},
        "retrieval_method": found.method,
        "context": found.context,
        "context_length": len(found.context),
        "retrieval_time": round(seconds, 6),
    }
    passed = {field: value for field, value in row.items() if field not in made and field not in ("success", "error")}
    return {**made, **passed, "success": not found.error, **({"error": found.error} if found.error else {})}
