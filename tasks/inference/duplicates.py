"""Rows with one `dedup_key` are answered from one run: later ones are given the question of the first.

Then they make the same request, which is computed once, and it is the first row of the file that decides, whoever runs
it. What has been seen is kept in a temporary file: a million keys take no memory.
"""

import json
import sqlite3
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

#: What may differ between rows that ask the same.
OWN = frozenset(
    ("id", "original_item_id", "query_index", "group_id", "retrieval_time", "context_length", "answered_as")
)


class Duplicates:
    def __init__(self) -> None:
        self._seen = sqlite3.connect("")  # on disk, and gone with the connection
        self._seen.execute("PRAGMA journal_mode = OFF")
        self._seen.execute("CREATE TABLE seen (key TEXT PRIMARY KEY, row TEXT) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seen.close()

    def settle(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row, with the first one's question if an earlier row has its key and asks otherwise."""
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
