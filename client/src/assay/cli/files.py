"""Items from a file or stdin, and rows into a file that is whole or not there."""

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
    """What `Assay.submit` takes: the path itself, or the lines of stdin for `-`. Raises OSError."""
    if path == "-":
        return _standard_input()
    with open(path, "rb"):  # says now what is wrong with it
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


def save(job: Job, path: str, see: Callable[[Row], None]) -> None:
    """Write all rows of an ended job beside `path`, then rename.

    Started again after a break, it goes on behind the last row it has; `see` is told of all of them. A device or a pipe
    is written to as it is: renamed over, /dev/null would be a file from then on, for everybody.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as device:
            for row in job.results():
                device.write(encode(row))
                see(row)
        return
    path = os.path.realpath(path)  # a link stays one
    # The epoch is in the name because a retry gives some items another outcome.
    part = f"{path}.{job.id}.{job.view.epoch}.part"
    with open(part, "a+b") as file:
        start = _resume(file, see)
        for row in job.results(start):
            file.write(encode(row))
            see(row)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _resume(file: IO[bytes], see: Callable[[Row], None]) -> int:
    """The index to go on at; half a line at the end is cut off."""
    file.seek(0)
    start = good = 0
    for line in file:
        try:
            row = Row.from_json(json.loads(line)) if line.endswith(b"\n") else None
        except ValueError:
            row = None
        if row is None:
            break
        see(row)
        start, good = row.index + 1, good + len(line)
    file.truncate(good)
    file.seek(0, os.SEEK_END)
    return start
