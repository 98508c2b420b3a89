"""The output file: rows appended as they come, so that it can be read meanwhile, and gone on with after any break."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

from assay.inference.resume import Place

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
        """Ours alone, and unchanged before `begin`. Raises OSError, and ValueError when another run writes to it."""
        is_new = not os.path.exists(path)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            if fcntl:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise ValueError(f"{path}: another run is writing to this file") from None
            output = cls(path, file)
            try:
                yield output
            except BaseException:
                if is_new and not output.has_begun:
                    os.unlink(path)
                raise

    def begin(self, good_bytes: int = 0, lacks_end: bool = False) -> None:
        """Write behind its first bytes; what comes after them is cut off."""
        self.has_begun = True
        self._file.truncate(good_bytes)
        self._file.seek(good_bytes)
        if lacks_end:
            self._file.write(b"\n")

    def append(self, line: bytes) -> Place:
        offset = self._file.tell()
        self._file.write(line + b"\n")
        return Place(offset, len(line) + 1)

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> int:
        """On disk when this returns. Gives its size."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


def rewrite(path: str, places: Iterable[Place]) -> None:
    """Leave these pieces of the file in it, in this order, and nothing else: it is the old one or the new one."""
    path = os.path.realpath(path)  # a link stays one
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
    """Beside the output: output_rank0.jsonl."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}_rank{rank}{suffix}"


def divide(path: str) -> dict[int, str]:
    """Write the rows that each worker made to a file of its own. Gives the files by rank."""
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
