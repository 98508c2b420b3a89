"""Rows of contexts and output files: reading lines with their byte offsets, and the keys that identify a row."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
from collections.abc import Iterator
from typing import IO, Any, NamedTuple, cast

_BOM = b"\xef\xbb\xbf"
#: Fields of an answer in an output row, and fields of an input row that the output row does not repeat.
_ANSWER = ("answer", "answers", "logprobs")
_NOT_IN_OUTPUT = ("context", "answered_as", "success", "error", "messages", "retrieval_time")


class Line(NamedTuple):
    number: int
    """Line number, counted from 1."""
    offset: int
    content: bytes
    """The bytes of the line, with the line end if it has any."""

    @property
    def is_blank(self) -> bool:
        return not self.content.strip()


class RowKeys(NamedTuple):
    """Hashes that identify a row."""

    key: bytes
    """Hash of the row's key; failed output rows have the key too."""
    question: bytes
    """Hash of the row's key and its question."""


def lines(path: str | os.PathLike[str]) -> Iterator[Line]:
    """Yield the lines of a file, decompressed if it is a .gz file. A byte order mark is removed from the first line."""
    with contextlib.closing(_open(path)) as file:
        offset = 0
        for number, content in enumerate(file, 1):
            start = len(_BOM) if number == 1 and content.startswith(_BOM) else 0
            yield Line(number, offset + start, content[start:])
            offset += len(content)


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    if os.fspath(path).endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return open(path, "rb")


def count(path: str | os.PathLike[str]) -> int:
    """Count the rows of a file, that is its non-blank lines."""
    return sum(not line.is_blank for line in lines(path))


def first_rows(path: str | os.PathLike[str], most: int) -> Iterator[bytes]:
    """Yield the lines of a file, blank lines included, up to this number of rows."""
    for line in lines(path):
        if most <= 0:
            return
        most -= not line.is_blank
        yield line.content if line.content.endswith(b"\n") else line.content + b"\n"


def parse(content: bytes) -> dict[str, Any] | None:
    """Parse a line to a row; return None if it is not a JSON object."""
    try:
        row = json.loads(content)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def row_keys(row: dict[str, Any]) -> RowKeys | None:
    """Return the hashes of a row. The key is `original_item_id` with `query_index`, otherwise `id`, otherwise the
    question alone; return None for a row without any of them."""
    key: list[Any] = [row.get("original_item_id"), row.get("query_index")]
    if None in key:
        key = [row["id"]] if row.get("id") is not None else []
    query = row.get("query")
    if not key and query is None:
        return None
    return RowKeys(_hash(key or [None, query]), _hash([*key, query]))


def dedup_hash(row: dict[str, Any]) -> bytes | None:
    """Hash the `dedup_key`, by which rows share an answer. None for a row without the key, and for a failed context."""
    key = row.get("dedup_key")
    return None if key is None or row.get("success") is False else _hash([key])


def with_answer_of(row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Build the output row of an input row, as the server would write it, with the answer of another output row."""
    retrieval_s, inference_s = row.get("retrieval_time") or 0.0, other.get("inference_time") or 0.0
    return {
        **{name: value for name, value in row.items() if name not in _NOT_IN_OUTPUT},
        **{name: other[name] for name in _ANSWER if name in other},
        "retrieval_time": retrieval_s,
        "inference_time": inference_s,
        "total_time": round(retrieval_s + inference_s, 4),
        "worker_rank": other.get("worker_rank"),
        "success": True,
    }


def is_answered(row: dict[str, Any]) -> bool:
    """Return whether an output row has an answer. An empty answer counts as missing, even if the row says `success`."""
    answers = row.get("answers") or [row.get("answer")]
    return row.get("success") is True and any(isinstance(text, str) and text.strip() for text in answers)


def rank_of(worker: str) -> int | None:
    """Return the rank of a worker: the slot index at the end of its name."""
    last = worker.rpartition(".")[2]
    return int(last) if last.isdigit() else None


def _hash(value: list[Any]) -> bytes:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).digest()
