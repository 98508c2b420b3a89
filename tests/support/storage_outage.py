"""Real outages of a storage folder: a file in its place, a disk that is full, a disk that is not mounted."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: Size of the full disk.
DISK_MB = 16


@contextmanager
def replaced_by_a_file(folder: Path) -> Iterator[None]:
    """Put a file in the place of the folder: nothing can be read or written, not even by root."""
    aside = folder.with_name(f"{folder.name}.aside")
    folder.rename(aside)
    folder.write_text("not a folder")
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


@contextmanager
def not_mounted(folder: Path) -> Iterator[None]:
    """Put an empty folder in its place, as the mount point of a disk that is away."""
    aside = folder.with_name(f"{folder.name}.aside")
    folder.rename(aside)
    folder.mkdir()
    try:
        yield
    finally:
        folder.rmdir()  # fails if anything was written into the mount point
        aside.rename(folder)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small disk on the folder; skip the test where that is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no program `mount`")
    if done.returncode:
        pytest.skip(f"a disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill a small disk up: existing files can be read, and nothing can be written."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        block = bytes(1 << 16)
        try:
            while True:
                os.write(file.fileno(), block)
        except OSError:
            pass
    try:
        yield
    finally:
        filler.unlink()
