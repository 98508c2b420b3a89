"""Outcomes and attachments too long for Redis: written to a file in the storage, with a stub in their place."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

from tasks.errors import StorageUnavailable, StoredFileMissing
from tasks.jobs.state.ledger import Attachment, Settled
from tasks.jobs.state.ledger_format import STUB_PREFIX
from tasks.jobs.state.storage import Storage, file_path, folder_path, values_path

#: Maximum size of an outcome in Redis, in bytes.
LINE_BYTES = 64 * 1024
#: Maximum size of an attachment in Redis, in bytes: larger than for outcomes, since few attachments exist at a time.
ATTACHMENT_BYTES = 512 * 1024
#: Maximum number of folders whose failed writes are remembered, and maximum size of the file that tests for room.
MOST_UNWRITTEN, MOST_ROOM_BYTES = 1000, 32 << 20


class LargeValues:
    def __init__(self, storage: Storage, hosts: Callable[[], Iterable[str]] = tuple) -> None:
        """`hosts`: returns the hosts that may read the written files."""
        self._storage = storage
        self._hosts = hosts
        self._unwritten: dict[str, int] = {}
        """Folders in which a value could not be written -> its size."""

    def shortened(self, folder: str, settled: Sequence[Settled], is_stored: bool = False) -> list[Settled]:
        """Move long outcomes and attachments to files, and return the results with stubs in their place. If the storage
        is not readable from every host, the results are returned unchanged. `is_stored`: the folder has the items of
        the job, so it exists. Raise StorageUnavailable."""
        settled = [
            each.with_attachment(self.shortened_attachment(folder, each.attachment)) if each.attachment else each
            for each in settled
        ]
        long = [each for each in settled if len(each.outcome) > LINE_BYTES]
        if not long or not self._storage.reaches(self._hosts()):
            return settled
        name, at = uuid4().hex, 0
        stubs: dict[int, str] = {}
        within = folder_path(folder) if is_stored else ""
        with (
            self._noting_failure(folder, sum(len(each.outcome) for each in long)),
            self._storage.writing(values_path(folder, name), within) as file,
        ):
            for each in long:
                body = each.outcome.encode()
                file.write(body)
                stubs[each.index] = _stub(name, at, at + len(body))
                at += len(body)
        return [each.with_outcome(stubs[each.index]) if each.index in stubs else each for each in settled]

    def keep_file(self, folder: str, body: bytes, suffix: str) -> str | None:
        """Store a file of the job and return its name; None if the storage is not readable from every host."""
        if not self._storage.reaches(self._hosts()):
            return None
        name = f"{uuid4().hex}.{suffix}"
        with self._noting_failure(folder, len(body)):
            self._storage.put(file_path(folder, name), body)
        return name

    def shortened_attachment(self, folder: str, attachment: Attachment) -> Attachment:
        """Move a long body to a separate file, which is deleted after use, and return the attachment with a stub."""
        if len(attachment) <= ATTACHMENT_BYTES or not self._storage.reaches(self._hosts()):
            return attachment
        name, body = uuid4().hex, attachment.body.encode()
        with self._noting_failure(folder, len(body)):
            self._storage.put(values_path(folder, name), body)
        return Attachment(attachment.about, _stub(name, 0, len(body)))

    def require_room(self, folder: str) -> None:
        """Raise StorageUnavailable if a value of this folder could not be written before, and still cannot: its item
        would be computed again in vain."""
        if size := self._unwritten.get(folder):
            path = values_path(folder, f"{uuid4().hex}-room")
            self._storage.put(path, bytes(size))
            self._storage.delete_file(path)
            self._unwritten.pop(folder, None)

    @contextmanager
    def _noting_failure(self, folder: str, size: int) -> Iterator[None]:
        try:
            yield
        except StorageUnavailable:
            if len(self._unwritten) >= MOST_UNWRITTEN:
                self._unwritten.clear()
            self._unwritten[folder] = min(size, MOST_ROOM_BYTES)
            raise

    def delete(self, folder: str, stub: str) -> None:
        """Delete the file of an attachment."""
        self._storage.delete_file(values_path(folder, json.loads(stub)["~stored"][0]))

    def exists(self, folder: str, line: str) -> bool:
        """Return whether the file of a stub exists; True for a line that is not a stub."""
        if not line.startswith(STUB_PREFIX):
            return True
        try:
            self._storage.read(values_path(folder, json.loads(line)["~stored"][0]), 0, 1)
        except StoredFileMissing:
            return False
        return True

    def resolved(self, folder: str, line: str, within: str | None = None) -> str:
        """Return the outcome that a stub refers to. A line that is not a stub is returned unchanged. `within`: a folder
        that exists while the storage does."""
        if not line.startswith(STUB_PREFIX):
            return line
        name, start, stop = json.loads(line)["~stored"]
        return self._storage.read(values_path(folder, name), start, stop, within).decode()


def needs_file(settled: Settled) -> bool:
    """Return whether a result has a value too long for Redis."""
    return len(settled.outcome) > LINE_BYTES or (
        settled.attachment is not None and len(settled.attachment) > ATTACHMENT_BYTES
    )


def _stub(name: str, start: int, stop: int) -> str:
    return f'{STUB_PREFIX}["{name}",{start},{stop}]}}'


def split(settled: Iterable[Settled], most_bytes: int, most: int) -> Iterator[list[Settled]]:
    """Split results into pages of at most `most_bytes` and `most` items; a single longer result is a page by itself.
    Yields at least one page, which may be empty."""
    page: list[Settled] = []
    size = 0
    for each in settled:
        length = len(each.outcome) + (len(each.attachment) if each.attachment else 0)
        if page and (size + length > most_bytes or len(page) == most):
            yield page
            page, size = [], 0
        page.append(each)
        size += length
    yield page
