"""Storage for the files of large jobs: uploaded items, outcomes in parts, values too large for Redis. Uses fsspec, so
that a local folder and an object storage bucket have the same interface.

Files are write-once: each file gets a unique name, and is visible only once the ledger refers to it. Names are
generated here from ids of this server; clients cannot choose names.

Every call has a timeout (`bounded_calls.py`), and raises StorageUnavailable when the storage cannot be read or written
now. A missing file raises StoredFileMissing only while its folder exists: an unmounted disk looks like an empty folder.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from tasks.connections import redact
from tasks.errors import StorageNotShared, StorageUnavailable, StoredFileMissing
from tasks.jobs.state.bounded_calls import BoundedCalls, CallRefused
from tasks.jobs.state.storage_faults import Access, StorageFaults

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Number of bytes read at a time when a file is streamed.
PAGE_BYTES = 1 << 20
#: Default timeout of a call in seconds (`ASSAY_STORAGE_TIMEOUT_S`).
TIMEOUT_S = 60.0


class Storage:
    def __init__(
        self,
        url: str,
        is_shared: bool = False,
        timeout_s: float = TIMEOUT_S,
        faults: StorageFaults | None = None,
    ) -> None:
        self._url = url
        self._opened: tuple[Any, str] = (None, "")
        self._opened_by = 0
        """Id of the process that opened the filesystem."""
        self.is_local = url.startswith("file://")
        self._is_shared = is_shared or not self.is_local
        self._calls = BoundedCalls(timeout_s)
        self.faults = faults or StorageFaults(None, f"storage {redact(url)}")

    @property
    def _filesystem(self) -> tuple[Any, str]:
        """Return fsspec's filesystem and the path of the storage in it, opened once per process: after a fork, the
        parent's connections cannot be used."""
        if self._opened_by != os.getpid():
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # 50 ms that a process without large jobs need not spend

            try:
                filesystem, root = url_to_fs(self._url)
            except Exception as error:  # the package for this kind of storage may not be installed on this host
                raise self._unavailable("read", error) from error
            self._opened, self._opened_by = (filesystem, root.rstrip("/")), os.getpid()
        return self._opened

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

    def create(self, path: str, within: str = "") -> "NewFile":
        """Create a file, with the folders above it. `within`: a folder of the file that must exist already, so that
        nothing is written into the empty mount point of a disk that is away."""
        filesystem, root = self._filesystem
        name = f"{root}/{path}"

        def create() -> Any:
            if within and self.is_local and not os.path.isdir(f"{root}/{within}"):
                raise FileNotFoundError(f"the folder {within} is missing")
            try:
                return filesystem.open(name, "wb")
            except FileNotFoundError:  # a bucket has no folders, so that only other storages get here
                filesystem.makedirs(name.rsplit("/", 1)[0], exist_ok=True)
                return filesystem.open(name, "wb")

        return NewFile(self.run_write(create), self, path)

    @contextmanager
    def writing(self, path: str, within: str = "") -> Iterator["NewFile"]:
        """Create a file, and finish it at the end of the block; delete it if an exception is raised."""
        file = self.create(path, within)
        try:
            yield file
            file.finish()
        except BaseException:
            file.discard()
            raise

    def put(self, path: str, body: bytes) -> None:
        with self.writing(path) as file:
            file.write(body)

    def read(self, path: str, start: int | None = None, stop: int | None = None, within: str | None = None) -> bytes:
        """Return bytes of a file. `within`: a folder of the file that exists while the storage does, by default the
        first of its path; empty if there may be none, as before the first write."""
        filesystem, root = self._filesystem
        with self._named(path, within):
            return cast(bytes, self._run("read", lambda: filesystem.cat_file(f"{root}/{path}", start=start, end=stop)))

    def pages(self, path: str) -> Iterator[bytes]:
        filesystem, root = self._filesystem
        with self._named(path):
            file = self._run("read", lambda: filesystem.open(f"{root}/{path}", "rb"))
            try:
                while page := self._run("read", lambda: file.read(PAGE_BYTES)):
                    yield page
            finally:
                self._calls.start(file.close)

    def delete(self, folder: str) -> None:
        """Delete a folder recursively. Idempotent: a missing folder is not an error."""
        filesystem, root = self._filesystem
        with suppress(FileNotFoundError):
            self._run("written", lambda: filesystem.rm(f"{root}/{folder}", recursive=True), is_proof=False)

    def delete_file(self, path: str) -> None:
        filesystem, root = self._filesystem
        with suppress(FileNotFoundError):
            self._run("written", lambda: filesystem.rm_file(f"{root}/{path}"), is_proof=False)

    # --- calls of the file system ---

    def run_write(self, call: Callable[[], T], is_last: bool = False) -> T:
        """Run a call that writes. `is_last`: its success proves that the storage can be written; a full disk still
        creates empty files. A missing folder means that the storage is unavailable."""
        try:
            return self._run("written", call, is_proof=is_last)
        except FileNotFoundError as error:
            raise self._unavailable("written", error) from error

    def _run(self, access: Access, call: Callable[[], T], is_proof: bool = True) -> T:
        """Return the result of a call of the file system; raise FileNotFoundError or StorageUnavailable. `is_proof`:
        whether its success proves that the storage is available again."""
        try:
            result = self._calls.run(call)
        except FileNotFoundError:
            raise
        except Exception as error:  # each fsspec implementation raises different error types
            raise self._unavailable(access, error) from error
        if is_proof:
            self.faults.succeeded(access)
        return result

    @contextmanager
    def _named(self, path: str, within: str | None = None) -> Iterator[None]:
        """Translate FileNotFoundError of a read."""
        folder = path.split("/", 1)[0] if within is None else within
        try:
            yield
        except FileNotFoundError as error:
            if (folder or not self.is_local) and (missing := self._missing_above(folder)):
                raise self._unavailable("read", FileNotFoundError(f"{missing} is missing")) from error
            raise StoredFileMissing(f"{path} does not exist in the storage {redact(self._url)} any more.") from error

    def _missing_above(self, folder: str) -> str:
        """Return the name of what is missing of the storage as a whole: the folder, or the bucket. Empty if it is
        there. An object storage has no folders."""
        filesystem, root = self._filesystem
        if self.is_local:
            is_there = self._run("read", lambda: os.path.isdir(f"{root}/{folder}"), is_proof=False)
            return "" if is_there else f"the folder {folder}"
        bucket = root.split("/", 1)[0]
        if not bucket or self._run("read", lambda: filesystem.exists(bucket), is_proof=False):
            return ""
        return f"the bucket {bucket}"

    def _unavailable(self, access: Access, error: Exception) -> StorageUnavailable:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
        self.faults.failed(access, reason)
        # The message of an ImportError names the package to install.
        remedy = "" if isinstance(error, ImportError) else "Free space on it, or make it reachable; then try again."
        return StorageUnavailable(
            f"The storage {redact(self._url)} cannot be {access}: {reason.rstrip('.')}. {remedy}".rstrip(), access
        )

    def clean_up(self, call: Callable[[], object]) -> None:
        """Run a call whose failure is harmless, such as the deletion of a file that no job names. While the storage
        hangs, do not wait for it."""
        try:
            self._calls.run(call)
        except CallRefused:
            self._calls.start(call)
        except Exception as error:  # noqa: BLE001  # the folder is deleted with its job
            log.debug("a clean-up of the storage failed: %s", error)

    def discard(self, file: Any, path: str) -> None:
        """Close a file and delete it."""
        filesystem, root = self._filesystem

        def discard() -> None:
            try:
                file.close()
            finally:
                filesystem.rm_file(f"{root}/{path}")

        self.clean_up(discard)


class NewFile:
    """A file that is being written. It is invisible to readers until `finish`."""

    def __init__(self, file: Any, storage: Storage, path: str) -> None:
        self._file = file
        self._storage = storage
        self._path = path

    def write(self, body: bytes) -> None:
        self._storage.run_write(lambda: self._file.write(body))

    def finish(self) -> None:
        """Close the file; it is durable when this returns: its contents are deleted from Redis next, and must survive a
        power failure."""

        def finish() -> None:
            self._file.flush()
            if self._storage.is_local:
                os.fsync(self._file.fileno())
            self._file.close()

        self._storage.run_write(finish, is_last=True)

    def abandon(self) -> None:
        """Close the file without finishing it. The caller deletes its folder."""
        self._storage.clean_up(self._file.close)

    def discard(self) -> None:
        """Close the file and delete it."""
        self._storage.discard(self._file, self._path)


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
