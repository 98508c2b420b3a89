"""Deduplication of rows: rows with the same `dedup_key` get the question of the first row with that key.

They then make the same request, which is computed only once; the result depends only on the order of the file, not on
the worker. The keys seen so far are kept in a temporary file: a million keys take no memory.
"""

import json
import sqlite3
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

#: Fields that are not part of a row's question: they may differ between rows with the same question.
OWN = frozenset(
    ("id", "original_item_id", "query_index", "group_id", "retrieval_time", "context_length", "answered_as")
)


class Duplicates:
    def __init__(self) -> None:
        self._seen = sqlite3.connect("")  # a temporary database on disk, deleted with the connection
        self._seen.execute("PRAGMA journal_mode = OFF")
        self._seen.execute("CREATE TABLE seen (key TEXT PRIMARY KEY, row TEXT) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seen.close()

    def settle(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row; if an earlier row with its key has a different question, add that question in
        `answered_as`."""
        row = {name: value for name, value in row.items() if name != "answered_as"}
        key = row.get("dedup_key")
        if key is None or row.get("success") is False:
            return row
        own = {name: value for name, value in row.items() if name not in OWN}
        text = json.dumps(own, sort_keys=True)
        self._seen.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, text))
        (first,) = self._seen.execute("SELECT row FROM seen WHERE key = ?", (key,)).fetchone()
        return row if first == text else row | {"answered_as": json.loads(first)}


def settled(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    with Duplicates() as duplicates:
        for row in rows:
            yield duplicates.settle(row)
