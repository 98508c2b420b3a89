"""Reads items from a file or stdin, and writes rows to a file atomically: the file is complete or does not exist."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import IO, Any, Callable, Union

from assay.client import Job
from assay.model import Row

Source = Union[str, Iterator[Any]]


def items(path: str) -> Source:
    """Return the items for `Assay.submit`: the path itself, or the lines of stdin for `-`. Raise OSError."""
    if path == "-":
        return _standard_input()
    with open(path, "rb"):  # an unreadable file fails now, before a connection is made
        return path


def _standard_input() -> Iterator[Any]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} of stdin is not JSON: {error}") from None


def encode(row: Row) -> bytes:
    return json.dumps(row.raw, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def save(job: Job, path: str, on_row: Callable[[Row], None]) -> None:
    """Write every row of an ended job to a temporary file beside `path`, then rename it to `path` atomically.

    Run again after an interruption, it resumes behind the last saved row; `on_row` is called with every row, also with
    the saved rows. A device or a pipe is written to directly: a rename would replace /dev/null by a regular file for
    the whole machine.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as device:
            for row in job.results():
                device.write(encode(row))
                on_row(row)
        return
    path = os.path.realpath(path)  # write to the target of a link, so that the link stays
    # The epoch is part of the name because a retry gives some items a different outcome.
    part = f"{path}.{job.id}.{job.view.epoch}.part"
    with open(part, "a+b") as file:
        start = _resume(file, on_row)
        for row in job.results(start):
            file.write(encode(row))
            on_row(row)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _resume(file: IO[bytes], on_row: Callable[[Row], None]) -> int:
    """Return the index of the next row to write; truncate an incomplete last line."""
    file.seek(0)
    start = good = 0
    for line in file:
        try:
            row = Row.from_json(json.loads(line)) if line.endswith(b"\n") else None
        except ValueError:
            row = None
        if row is None:
            break
        on_row(row)
        start, good = row.index + 1, good + len(line)
    file.truncate(good)
    file.seek(0, os.SEEK_END)
    return start
