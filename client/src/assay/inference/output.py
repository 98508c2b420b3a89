"""Output file of an inference run. Rows are appended as they arrive, so it can be read meanwhile and resumed later."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

from assay.inference.resume import ByteRange

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class OutputFile:
    def __init__(self, path: str, file: IO[bytes]) -> None:
        self.path, self._file = path, file
        self.has_begun = False

    @classmethod
    @contextmanager
    def opened(cls, path: str) -> Iterator[OutputFile]:
        """Open the file with an exclusive lock; it stays unchanged until `begin`, and a new file is deleted on an error
        before `begin`. Raise OSError, or ValueError if another run holds the lock."""
        is_new = not os.path.exists(path)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            if fcntl:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    message = f"{path}: another run is writing to this file: wait for it, or name another file"
                    raise ValueError(message) from None
            output = cls(path, file)
            try:
                yield output
            except BaseException:
                if is_new and not output.has_begun:
                    os.unlink(path)
                raise

    def begin(self, good_bytes: int = 0, lacks_end: bool = False) -> None:
        """Truncate the file to its first `good_bytes` bytes and append from there; first end an unfinished line."""
        self.has_begun = True
        self._file.truncate(good_bytes)
        self._file.seek(good_bytes)
        if lacks_end:
            self._file.write(b"\n")

    def append(self, line: bytes) -> ByteRange:
        offset = self._file.tell()
        self._file.write(line + b"\n")
        return ByteRange(offset, len(line) + 1)

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> int:
        """Flush the file to disk (fsync) and return its size."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


def rewrite(path: str, places: Iterable[ByteRange]) -> None:
    """Replace the file's content atomically by these byte ranges of it, in this order."""
    path = os.path.realpath(path)  # write to the target of a link, so that the link stays
    part = f"{path}.part"
    with open(path, "rb") as old, open(part, "wb") as new:
        for place in places:
            old.seek(place.offset)
            new.write(old.read(place.length))
        new.flush()
        os.fsync(new.fileno())
    shutil.copymode(path, part)
    os.replace(part, path)


def rank_path(path: str, rank: int) -> str:
    """Return the path of a worker's file beside the output: output_rank0.jsonl for output.jsonl."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}_rank{rank}{suffix}"


def divide(path: str) -> dict[int, str]:
    """Split the output by worker: write the rows of each worker to a separate file. Return the files by rank."""
    files: dict[int, IO[bytes]] = {}
    with open(path, "rb") as whole, ExitStack() as stack:
        for line in whole:
            rank = json.loads(line).get("worker_rank")
            if rank is None:
                continue
            if rank not in files:
                files[rank] = stack.enter_context(open(f"{rank_path(path, rank)}.part", "wb"))
            files[rank].write(line)
    for rank in files:
        os.replace(f"{rank_path(path, rank)}.part", rank_path(path, rank))
    return {rank: rank_path(path, rank) for rank in sorted(files)}
