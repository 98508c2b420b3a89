"""What tells the files of one model from those of all others: the cache's key, and the version that answers name."""

import hashlib
from functools import lru_cache
from pathlib import Path

#: Files up to this many bytes count whole. Reading all weights would take longer than loading them.
WHOLE_BYTES = 64 << 20
#: Of others so many pieces of so many bytes count, evenly spread: close enough together to meet every layer.
PIECES, PIECE_BYTES = 256, 64 << 10


def fingerprint(folder: Path) -> str | None:
    """The same on every host that has a copy; None for what is no folder, or cannot be read."""
    try:
        files = sorted((each, each.stat()) for each in folder.iterdir() if each.is_file())
        return _of_files(tuple((each, stat.st_size, stat.st_mtime_ns) for each, stat in files))
    except OSError:
        return None


@lru_cache(maxsize=64)
def _of_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Their times tell when to look again, and count for nothing else."""
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
