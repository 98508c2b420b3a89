"""Storage for the files of large jobs: uploaded items, outcomes in parts, values too large for Redis. Uses fsspec, so
that a local folder and an object storage bucket have the same interface.

Files are write-once: each file gets a unique name, and is visible only once the ledger refers to it. Names are
generated here from ids of this server; clients cannot choose names.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property, partial
from typing import Any, cast

from tasks.connections import redact
from tasks.errors import StorageNotShared, StorageUnavailable, StoredFileMissing

#: Number of bytes read at a time when a file is streamed.
PAGE_BYTES = 1 << 20


class Storage:
    def __init__(self, url: str, is_shared: bool = False) -> None:
        self._url = url
        self._is_shared = is_shared or not url.startswith("file://")

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # 50 ms that a process without large jobs need not spend

        filesystem, root = url_to_fs(self._url)
        return filesystem, root.rstrip("/")

    def reaches(self, hosts: Iterable[str]) -> bool:
        """Return whether every given host can read the files that this host writes."""
        return self._is_shared or set(hosts) <= {socket.gethostname()}

    def require_reach(self, hosts: Iterable[str]) -> None:
        """Raise StorageNotShared if any of the given hosts cannot read the files that this host writes."""
        local_host = socket.gethostname()
        remote_hosts = sorted({host for host in hosts if host != local_host})
        if not self.reaches(remote_hosts):
            raise StorageNotShared(
                f"Large jobs are stored in a folder of this host ({redact(self._url)}), but {remote_hosts[0]} also has "
                "workers: set ASSAY_STORAGE_URL to a storage that every host can reach, or ASSAY_STORAGE_SHARED=true "
                "if this folder is shared."
            )

    def uri(self, path: str) -> str:
        """Return the URI by which other processes find a file."""
        return f"{self._url.rstrip('/')}/{path}"

    def path_of(self, uri: str) -> str | None:
        """Return the path of a file in this storage by its URI; None for a file in another storage."""
        root = f"{self._url.rstrip('/')}/"
        return uri.removeprefix(root) if uri.startswith(root) else None

    def create(self, path: str) -> "NewFile":
        filesystem, root = self._filesystem
        name = f"{root}/{path}"
        with self._explained(path):
            filesystem.makedirs(name.rsplit("/", 1)[0], exist_ok=True)
            return NewFile(filesystem.open(name, "wb"), partial(self._explained, path), self._url.startswith("file://"))

    def put(self, path: str, body: bytes) -> None:
        file = self.create(path)
        file.write(body)
        file.finish()

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        filesystem, root = self._filesystem
        with self._explained(path):
            return cast(bytes, filesystem.cat_file(f"{root}/{path}", start, stop))

    def exists(self, path: str) -> bool:
        filesystem, root = self._filesystem
        with self._explained(path):
            return bool(filesystem.exists(f"{root}/{path}"))

    def pages(self, path: str) -> Iterator[bytes]:
        filesystem, root = self._filesystem
        with self._explained(path), filesystem.open(f"{root}/{path}", "rb") as file:
            while page := file.read(PAGE_BYTES):
                yield page

    def delete(self, folder: str) -> None:
        """Delete a folder recursively. Idempotent: a missing folder is not an error."""
        filesystem, root = self._filesystem
        with self._explained(folder):
            try:
                filesystem.rm(f"{root}/{folder}", recursive=True)
            except FileNotFoundError:
                return

    def delete_file(self, path: str) -> None:
        filesystem, root = self._filesystem
        with self._explained(path):
            try:
                filesystem.rm_file(f"{root}/{path}")
            except FileNotFoundError:
                return

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise StoredFileMissing(f"{path} does not exist in the storage {redact(self._url)} any more.") from error
        except (StorageUnavailable, StoredFileMissing):
            raise
        except Exception as error:  # each fsspec implementation raises different error types
            raise StorageUnavailable(f"The storage {redact(self._url)} cannot be used: {error}") from error


class NewFile:
    """A file that is being written. It is invisible to readers until `finish`."""

    def __init__(self, file: Any, explained: Callable[[], AbstractContextManager[None]], is_local: bool) -> None:
        self._file = file
        self._explained = explained
        self._is_local = is_local

    def write(self, body: bytes) -> None:
        with self._explained():
            self._file.write(body)

    def finish(self) -> None:
        """Close the file; it is durable when this returns: its contents are deleted from Redis next, and must survive a
        power failure."""
        with self._explained():
            self._file.flush()
            if self._is_local:
                os.fsync(self._file.fileno())
            self._file.close()

    def abandon(self) -> None:
        """Close the file without finishing it. The caller deletes its folder."""
        with suppress(OSError):
            self._file.close()


def folder_path(name: str) -> str:
    return f"jobs/{name}"


def items_path(name: str) -> str:
    return f"{folder_path(name)}/items.jsonl"


def part_path(name: str, part: int, epoch: int, suffix: str) -> str:
    return f"{folder_path(name)}/parts/{part:06d}-{epoch}-{suffix}.jsonl"


def weights_path(name: str, version: int, suffix: str) -> str:
    return f"{folder_path(name)}/weights/{version:09d}-{suffix}.safetensors"


def values_path(name: str, suffix: str) -> str:
    return f"{folder_path(name)}/values/{suffix}.jsonl"


def file_path(name: str, file: str) -> str:
    """Return the path of a file that a kind stores beside its outcomes, such as a video."""
    return f"{folder_path(name)}/files/{file}"
