"""Rows of contexts and output files: their lines as they lie in the file, and what tells a row from all others."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
from collections.abc import Iterator
from typing import IO, Any, NamedTuple, cast

_BOM = b"\xef\xbb\xbf"
#: What the output has of an answer, and what of an input row it leaves out.
_ANSWER = ("answer", "answers", "logprobs")
_LEFT_OUT = ("context", "answered_as", "success", "error", "messages", "retrieval_time")


class Line(NamedTuple):
    number: int
    """As an editor counts."""
    offset: int
    content: bytes
    """With its end, if it has one."""

    @property
    def is_blank(self) -> bool:
        return not self.content.strip()


class Marks(NamedTuple):
    """Hashes that tell a row from others."""

    own: bytes
    """Of its key, which failed rows have too."""
    whole: bytes
    """Of its key and its question."""


def lines(path: str | os.PathLike[str]) -> Iterator[Line]:
    """The lines of a file, which may be packed with gzip. A byte order mark is no part of the first."""
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
    """Rows of the file: its lines that are not blank."""
    return sum(not line.is_blank for line in lines(path))


def first(path: str | os.PathLike[str], most: int) -> Iterator[bytes]:
    """The lines up to this many rows, blank ones among them."""
    for line in lines(path):
        if most <= 0:
            return
        most -= not line.is_blank
        yield line.content if line.content.endswith(b"\n") else line.content + b"\n"


def read(content: bytes) -> dict[str, Any] | None:
    """The row of a line; None for what is no JSON object."""
    try:
        row = json.loads(content)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def marks(row: dict[str, Any]) -> Marks | None:
    """By `original_item_id` and `query_index`, else by `id`, else by the question alone; None for a row without any."""
    key: list[Any] = [row.get("original_item_id"), row.get("query_index")]
    if None in key:
        key = [row["id"]] if row.get("id") is not None else []
    query = row.get("query")
    if not key and query is None:
        return None
    return Marks(_hash(key or [None, query]), _hash([*key, query]))


def shared_mark(row: dict[str, Any]) -> bytes | None:
    """Of what rows are answered from one run by; None for a row that is run for itself, or not at all."""
    key = row.get("dedup_key")
    return None if key is None or row.get("success") is False else _hash([key])


def answered_like(row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The output of a row, as the server would write it, with the answer that another row of the output has."""
    spent, seconds = row.get("retrieval_time") or 0.0, other.get("inference_time") or 0.0
    return {
        **{name: value for name, value in row.items() if name not in _LEFT_OUT},
        **{name: other[name] for name in _ANSWER if name in other},
        "retrieval_time": spent,
        "inference_time": seconds,
        "total_time": round(spent + seconds, 4),
        "worker_rank": other.get("worker_rank"),
        "success": True,
    }


def is_answered(row: dict[str, Any]) -> bool:
    """Whether a row of an output need not be run again. An empty answer is none, whatever the row says of itself."""
    answers = row.get("answers") or [row.get("answer")]
    return row.get("success") is True and any(isinstance(text, str) and text.strip() for text in answers)


def rank_of(worker: str) -> int | None:
    """The rank of a worker by its name: the index of its slot."""
    last = worker.rpartition(".")[2]
    return int(last) if last.isdigit() else None


def _hash(value: list[Any]) -> bytes:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).digest()
