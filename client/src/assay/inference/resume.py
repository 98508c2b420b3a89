"""What of a contexts file is answered already, by the contents of an output file, whatever state that is in.

A row of the output counts for the row of the contexts that has its key and its question; of several with one key the
first counts for the first, the second for the second. A row without one takes the answer of the first row of its
`dedup_key` if that has one: the server, which sees only the rest of the file, would take another row for the first.
Only places in the files are remembered, and these in a temporary file: a million rows take no memory.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from assay.inference import rows

# old     the rows of the output file; `whole` is null for one that failed
# wanted  the rows of the contexts file, counted from 0
# kept    which of the old counts for which of the wanted
# copied  wanted rows without one, and where the answer of the first row of their `dedup_key` lies
# missing all other wanted rows, in order: their rowid is their place in the job, from 1 on
# fresh   where the job's rows were written, by that place
_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE old (offset INTEGER PRIMARY KEY, length INTEGER, own BLOB, whole BLOB);
CREATE TABLE wanted (n INTEGER PRIMARY KEY, own BLOB, whole BLOB, shared BLOB);
CREATE TABLE kept (n INTEGER PRIMARY KEY, offset INTEGER UNIQUE, length INTEGER);
CREATE TABLE copied (n INTEGER PRIMARY KEY, offset INTEGER, length INTEGER);
CREATE TABLE missing (n INTEGER);
CREATE TABLE fresh (place INTEGER PRIMARY KEY, offset INTEGER, length INTEGER);
"""

# First those that stand where they should among the rows of their key; then any that ask the same.
_MATCH = """
INSERT INTO kept
  SELECT n, offset, length
  FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY own ORDER BY n) AS place FROM wanted WHERE own IS NOT NULL)
  JOIN (SELECT *, ROW_NUMBER() OVER (PARTITION BY own ORDER BY offset) AS place FROM old WHERE own IS NOT NULL)
  USING (own, place, whole);
INSERT INTO kept
  SELECT n, offset, length
  FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY whole ORDER BY n) AS place FROM wanted
        WHERE whole IS NOT NULL AND n NOT IN (SELECT n FROM kept))
  JOIN (SELECT *, ROW_NUMBER() OVER (PARTITION BY whole ORDER BY offset) AS place FROM old
        WHERE whole IS NOT NULL AND offset NOT IN (SELECT offset FROM kept))
  USING (whole, place);
INSERT INTO copied
  SELECT wanted.n, offset, length
  FROM wanted
  JOIN (SELECT shared, MIN(n) AS first FROM wanted WHERE shared IS NOT NULL GROUP BY shared) USING (shared)
  JOIN kept ON kept.n = first
  WHERE wanted.n NOT IN (SELECT n FROM kept);
INSERT INTO missing
  SELECT n FROM wanted WHERE n NOT IN (SELECT n FROM kept) AND n NOT IN (SELECT n FROM copied) ORDER BY n;
"""

_IN_ORDER = """
SELECT n, offset, length FROM kept
UNION ALL SELECT n, offset, length FROM missing JOIN fresh ON place = missing.rowid
ORDER BY n
"""


class Place(NamedTuple):
    offset: int
    length: int


@dataclass(frozen=True)
class Findings:
    wanted: int
    """Rows of the contexts file that count."""
    kept: int
    copied: int
    """Rows that take the answer of the first row of their `dedup_key`, which is kept."""
    failed: int
    """Rows of the output that failed, and have not been answered elsewhere in it."""
    foreign: int
    """Rows of the output that answer nothing of the contexts file, or answer it once more."""
    unreadable: int
    """Lines of the output that are no rows."""
    is_cut: bool
    """Its last line was cut off."""
    good_bytes: int
    """Length of the output file up to there."""
    lacks_end: bool
    """Its last line is whole, but for its end."""

    @property
    def missing(self) -> int:
        """Rows to run."""
        return self.wanted - self.kept - self.copied


class Resume:
    def __init__(self) -> None:
        self._index = sqlite3.connect("", isolation_level=None)  # on disk, and gone with the connection
        self._index.executescript(_TABLES)
        self._tail = (0, False, False)
        self._unreadable = 0

    def close(self) -> None:
        self._index.close()

    def compare(self, contexts: str, output: str, most: int | None) -> Findings:
        """Match the output's rows with the first `most` rows of the contexts file."""
        self._fill("INSERT INTO wanted VALUES (?, ?, ?, ?)", self._wanted(contexts, most))
        if os.path.exists(output):
            self._fill("INSERT INTO old VALUES (?, ?, ?, ?)", self._old(output))
        self._index.executescript(_MATCH)
        tables = ("wanted", "kept", "copied", "old")
        wanted, kept, copied, old = (self._count(f"SELECT COUNT(*) FROM {table}") for table in tables)
        failed = self._count(
            "SELECT COUNT(DISTINCT n) FROM missing JOIN wanted USING (n) JOIN old USING (own) WHERE old.whole IS NULL"
        )
        failures = self._count("SELECT COUNT(*) FROM old WHERE whole IS NULL AND own IN (SELECT own FROM wanted)")
        good, is_cut, lacks_end = self._tail
        return Findings(wanted, kept, copied, failed, old - kept - failures, self._unreadable, is_cut, good, lacks_end)

    def _wanted(self, contexts: str, most: int | None) -> Iterator[tuple[object, ...]]:
        n = 0
        for line in rows.lines(contexts):
            if line.is_blank:
                continue
            if n == most:
                return
            row = rows.read(line.content)
            marks = rows.marks(row) if row else None
            yield (n, *(marks or (None, None)), rows.shared_mark(row) if row else None)
            n += 1

    def _old(self, output: str) -> Iterator[tuple[object, ...]]:
        for line in rows.lines(output):
            end, is_ended = line.offset + len(line.content), line.content.endswith(b"\n")
            row = rows.read(line.content)
            if row is None and not is_ended:
                self._tail = (line.offset, True, False)
                return
            self._tail = (end, False, not is_ended)
            if row is None:
                self._unreadable += not line.is_blank
                continue
            marks = rows.marks(row)
            own, whole = (marks.own, marks.whole) if marks else (None, None)
            # Its end is added before anything is written behind it.
            length = len(line.content) + (not is_ended)
            yield line.offset, length, own, whole if rows.is_answered(row) else None

    def unanswered(self, contexts: str) -> Iterator[bytes]:
        """The contexts file with empty lines in place of what need not be run: so the numbers of lines stay right."""
        open_places = (n for (n,) in self._index.execute("SELECT n FROM missing ORDER BY rowid"))
        wanted, n = next(open_places, None), 0
        for line in rows.lines(contexts):
            if wanted is None:
                return
            if not line.is_blank and n == wanted:
                yield line.content if line.content.endswith(b"\n") else line.content + b"\n"
                wanted = next(open_places, None)
            else:
                yield b"\n"
            n += not line.is_blank

    def copies(self, contexts: str, output: str) -> Iterator[tuple[int, bytes]]:
        """Which rows take a kept answer of another, and their lines of the output."""
        answers = self._index.execute("SELECT n, offset, length FROM copied ORDER BY n")
        with open(output, "rb") as file:
            given = enumerate(line.content for line in rows.lines(contexts) if not line.is_blank)
            for wanted, offset, length in answers:
                content = next(content for n, content in given if n == wanted)
                file.seek(offset)
                row = rows.answered_like(rows.read(content) or {}, rows.read(file.read(length)) or {})
                yield wanted, json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()

    def note_copy(self, n: int, where: Place) -> None:
        self._index.execute("INSERT INTO kept VALUES (?, ?, ?)", (n, where.offset, where.length))

    def note(self, place: int, where: Place) -> None:
        """The job's row of this place, from 0 on, was written there."""
        self._index.execute("INSERT INTO fresh VALUES (?, ?, ?)", (place + 1, where.offset, where.length))

    def in_order(self) -> Iterator[Place]:
        """Where the rows of the finished output lie, in input order."""
        return (Place(offset, length) for _, offset, length in self._index.execute(_IN_ORDER))

    def is_in_order(self, size: int) -> bool:
        """Whether a file of this size has these rows, one after the other, and nothing else."""
        at = 0
        for place in self.in_order():
            if place.offset != at:
                return False
            at += place.length
        return at == size

    def _fill(self, statement: str, values: Iterable[tuple[object, ...]]) -> None:
        self._index.execute("BEGIN")
        self._index.executemany(statement, values)
        self._index.execute("COMMIT")

    def _count(self, query: str) -> int:
        return int(self._index.execute(query).fetchone()[0])
