"""Resuming a run: finds the rows of a contexts file that an output file already answers. The output file may be in any
state, for example unordered, truncated, or with rows of other inputs.

An output row answers the input row with the same key and question; among several rows with the same key, the first
answers the first, the second the second. An input row without an answer takes the answer of the first row with its
`dedup_key` if that row is answered: the server receives only the missing rows, so it would take a different row as the
first. The index stores byte ranges, not rows, in a temporary SQLite file: a million rows take almost no memory.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from assay.inference import rows

# old     rows of the output file; `question` is null for a failed row
# wanted  rows of the contexts file, counted from 0
# kept    for each wanted row that is answered, the byte range of its output row
# copied  unanswered wanted rows, with the byte range of the answered first row of their `dedup_key`
# missing the remaining wanted rows, in order: the rowid is the row's position in the job, from 1 on
# fresh   byte ranges of the output rows that the job wrote, by position in the job
_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE old (offset INTEGER PRIMARY KEY, length INTEGER, key BLOB, question BLOB);
CREATE TABLE wanted (n INTEGER PRIMARY KEY, key BLOB, question BLOB, dedup BLOB);
CREATE TABLE kept (n INTEGER PRIMARY KEY, offset INTEGER UNIQUE, length INTEGER);
CREATE TABLE copied (n INTEGER PRIMARY KEY, offset INTEGER, length INTEGER);
CREATE TABLE missing (n INTEGER);
CREATE TABLE fresh (position INTEGER PRIMARY KEY, offset INTEGER, length INTEGER);
"""

# First match rows with the same position among the rows of their key; then match any rows with the same question.
_MATCH = """
INSERT INTO kept
  SELECT n, offset, length
  FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY key ORDER BY n) AS position FROM wanted WHERE key IS NOT NULL)
  JOIN (SELECT *, ROW_NUMBER() OVER (PARTITION BY key ORDER BY offset) AS position FROM old WHERE key IS NOT NULL)
  USING (key, position, question);
INSERT INTO kept
  SELECT n, offset, length
  FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY question ORDER BY n) AS position FROM wanted
        WHERE question IS NOT NULL AND n NOT IN (SELECT n FROM kept))
  JOIN (SELECT *, ROW_NUMBER() OVER (PARTITION BY question ORDER BY offset) AS position FROM old
        WHERE question IS NOT NULL AND offset NOT IN (SELECT offset FROM kept))
  USING (question, position);
INSERT INTO copied
  SELECT wanted.n, offset, length
  FROM wanted
  JOIN (SELECT dedup, MIN(n) AS first FROM wanted WHERE dedup IS NOT NULL GROUP BY dedup) USING (dedup)
  JOIN kept ON kept.n = first
  WHERE wanted.n NOT IN (SELECT n FROM kept);
INSERT INTO missing
  SELECT n FROM wanted WHERE n NOT IN (SELECT n FROM kept) AND n NOT IN (SELECT n FROM copied) ORDER BY n;
"""

_IN_ORDER = """
SELECT n, offset, length FROM kept
UNION ALL SELECT n, offset, length FROM missing JOIN fresh ON position = missing.rowid
ORDER BY n
"""


class ByteRange(NamedTuple):
    offset: int
    length: int


@dataclass(frozen=True)
class Comparison:
    """Result of comparing an output file with a contexts file: counts of rows, and the state of the last line."""

    wanted: int
    """Rows of the contexts file, up to the row limit."""
    kept: int
    """Rows that the output file answers."""
    copied: int
    """Rows that take the answer of the kept first row with their `dedup_key`."""
    failed: int
    """Failed rows of the output that no other row of it answers."""
    foreign: int
    """Rows of the output without a row in the contexts file, or with a row that is already answered."""
    unreadable: int
    """Lines of the output that are not JSON objects."""
    is_cut: bool
    """Whether the last line of the output is truncated."""
    good_bytes: int
    """Length of the output file without a truncated last line."""
    lacks_end: bool
    """Whether the last line is complete except for its line end."""

    @property
    def missing(self) -> int:
        """Number of rows to run."""
        return self.wanted - self.kept - self.copied


class ResumeIndex:
    def __init__(self) -> None:
        self._index = sqlite3.connect("", isolation_level=None)  # a temporary file, deleted when the connection closes
        self._index.executescript(_TABLES)
        self._tail = (0, False, False)
        self._unreadable = 0

    def close(self) -> None:
        self._index.close()

    def compare(self, contexts: str, output: str, most: int | None) -> Comparison:
        """Match the output's rows with the first `most` rows of the contexts file; None means every row."""
        self._fill("INSERT INTO wanted VALUES (?, ?, ?, ?)", self._wanted(contexts, most))
        if os.path.exists(output):
            self._fill("INSERT INTO old VALUES (?, ?, ?, ?)", self._old(output))
        self._index.executescript(_MATCH)
        tables = ("wanted", "kept", "copied", "old")
        wanted, kept, copied, old = (self._count(f"SELECT COUNT(*) FROM {table}") for table in tables)
        failed = self._count(
            "SELECT COUNT(DISTINCT n) FROM missing JOIN wanted USING (n) JOIN old USING (key) "
            "WHERE old.question IS NULL"
        )
        failures = self._count("SELECT COUNT(*) FROM old WHERE question IS NULL AND key IN (SELECT key FROM wanted)")
        good, is_cut, lacks_end = self._tail
        return Comparison(
            wanted, kept, copied, failed, old - kept - failures, self._unreadable, is_cut, good, lacks_end
        )

    def _wanted(self, contexts: str, most: int | None) -> Iterator[tuple[object, ...]]:
        n = 0
        for line in rows.lines(contexts):
            if line.is_blank:
                continue
            if n == most:
                return
            row = rows.parse(line.content)
            keys = rows.row_keys(row) if row else None
            yield (n, *(keys or (None, None)), rows.dedup_hash(row) if row else None)
            n += 1

    def _old(self, output: str) -> Iterator[tuple[object, ...]]:
        for line in rows.lines(output):
            end, is_ended = line.offset + len(line.content), line.content.endswith(b"\n")
            row = rows.parse(line.content)
            if row is None and not is_ended:
                self._tail = (line.offset, True, False)
                return
            self._tail = (end, False, not is_ended)
            if row is None:
                self._unreadable += not line.is_blank
                continue
            keys = rows.row_keys(row)
            key, question = keys or (None, None)
            # A missing line end is added before another row is appended.
            length = len(line.content) + (not is_ended)
            yield line.offset, length, key, question if rows.is_answered(row) else None

    def unanswered(self, contexts: str) -> Iterator[bytes]:
        """Yield the contexts file with an empty line in place of each row that need not run, so that the line numbers
        in the server's error messages stay correct."""
        missing = (n for (n,) in self._index.execute("SELECT n FROM missing ORDER BY rowid"))
        wanted, n = next(missing, None), 0
        for line in rows.lines(contexts):
            if wanted is None:
                return
            if not line.is_blank and n == wanted:
                yield line.content if line.content.endswith(b"\n") else line.content + b"\n"
                wanted = next(missing, None)
            else:
                yield b"\n"
            n += not line.is_blank

    def copies(self, contexts: str, output: str) -> Iterator[tuple[int, bytes]]:
        """Yield number and output line of each row that takes the kept answer of another row."""
        answers = self._index.execute("SELECT n, offset, length FROM copied ORDER BY n")
        with open(output, "rb") as file:
            numbered = enumerate(line.content for line in rows.lines(contexts) if not line.is_blank)
            for wanted, offset, length in answers:
                content = next(content for n, content in numbered if n == wanted)
                file.seek(offset)
                row = rows.with_answer_of(rows.parse(content) or {}, rows.parse(file.read(length)) or {})
                yield wanted, json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()

    def add_copy(self, n: int, written: ByteRange) -> None:
        """Record the byte range of an input row's copied answer."""
        self._index.execute("INSERT INTO kept VALUES (?, ?, ?)", (n, written.offset, written.length))

    def add_row(self, position: int, written: ByteRange) -> None:
        """Record the byte range of the job's row at this position, counted from 0."""
        self._index.execute("INSERT INTO fresh VALUES (?, ?, ?)", (position + 1, written.offset, written.length))

    def in_order(self) -> Iterator[ByteRange]:
        """Yield the byte ranges of the finished output's rows, in input order."""
        return (ByteRange(offset, length) for _, offset, length in self._index.execute(_IN_ORDER))

    def is_in_order(self, size: int) -> bool:
        """Return whether a file of this size consists of exactly these rows, in input order."""
        end = 0
        for row in self.in_order():
            if row.offset != end:
                return False
            end += row.length
        return end == size

    def _fill(self, statement: str, values: Iterable[tuple[object, ...]]) -> None:
        self._index.execute("BEGIN")
        self._index.executemany(statement, values)
        self._index.execute("COMMIT")

    def _count(self, query: str) -> int:
        return int(self._index.execute(query).fetchone()[0])
