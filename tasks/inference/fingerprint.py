"""Fingerprint of a model's files: part of the cache key, and the version that answers report."""

import hashlib
from functools import lru_cache
from pathlib import Path

#: Files up to this size are hashed completely. Hashing the complete weights would take longer than loading them.
WHOLE_BYTES = 64 << 20
#: Number and size of the pieces hashed of a larger file, evenly spread: dense enough to include every layer.
PIECES, PIECE_BYTES = 256, 64 << 10


def fingerprint(folder: Path) -> str | None:
    """Return the fingerprint, equal on every host with a copy; None for a folder that is missing or unreadable."""
    try:
        files = sorted((each, each.stat()) for each in folder.iterdir() if each.is_file())
        return _of_files(tuple((each, stat.st_size, stat.st_mtime_ns) for each, stat in files))
    except OSError:
        return None


@lru_cache(maxsize=64)
def _of_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Hash names, sizes and contents of the files; their times only invalidate this function's cache."""
    digest = hashlib.sha256()
    for path, size, _ in files:
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            if size <= WHOLE_BYTES:
                digest.update(file.read())
                continue
            for piece in range(PIECES):
                file.seek(piece * (size - PIECE_BYTES) // (PIECES - 1))
                digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()[:32]
