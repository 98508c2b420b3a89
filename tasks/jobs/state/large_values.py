"""Outcomes too long for Redis: a file has them, and a stub takes their place."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from uuid import uuid4

from tasks.jobs.state.ledger import Attachment, Settled
from tasks.jobs.state.ledger_format import STUB_PREFIX
from tasks.jobs.state.storage import Storage, file_path, values_path

#: Bytes of an outcome that Redis holds at most.
LINE_BYTES = 64 * 1024
#: The same for an attachment, of which there are few at a time.
ATTACHMENT_BYTES = 512 * 1024


class LargeValues:
    def __init__(self, storage: Storage, hosts: Callable[[], Iterable[str]] = tuple) -> None:
        """`hosts`: all that may want to read what is written here."""
        self._storage = storage
        self._hosts = hosts

    def shortened(self, folder: str, settled: Sequence[Settled]) -> list[Settled]:
        """The same, with long outcomes put into a file; they stay where not every host could read it."""
        settled = [
            each.with_attachment(self.shortened_attachment(folder, each.attachment)) if each.attachment else each
            for each in settled
        ]
        long = [each for each in settled if len(each.outcome) > LINE_BYTES]
        if not long or not self._storage.reaches(self._hosts()):
            return settled
        name, at = uuid4().hex, 0
        file = self._storage.create(values_path(folder, name))
        stubs: dict[int, str] = {}
        for each in long:
            body = each.outcome.encode()
            file.write(body)
            stubs[each.index] = _stub(name, at, at + len(body))
            at += len(body)
        file.finish()
        return [each.with_outcome(stubs[each.index]) if each.index in stubs else each for each in settled]

    def keep_file(self, folder: str, body: bytes, suffix: str) -> str | None:
        """Its name; None where not every host could read it."""
        if not self._storage.reaches(self._hosts()):
            return None
        name = f"{uuid4().hex}.{suffix}"
        self._storage.put(file_path(folder, name), body)
        return name

    def shortened_attachment(self, folder: str, attachment: Attachment) -> Attachment:
        """Return the attachment with a long body in a file of its own, which is deleted once it was used."""
        if len(attachment) <= ATTACHMENT_BYTES or not self._storage.reaches(self._hosts()):
            return attachment
        name, body = uuid4().hex, attachment.body.encode()
        self._storage.put(values_path(folder, name), body)
        return Attachment(attachment.about, _stub(name, 0, len(body)))

    def delete(self, folder: str, stub: str) -> None:
        """Delete the file of an attachment."""
        self._storage.delete_file(values_path(folder, json.loads(stub)["~stored"][0]))

    def resolved(self, folder: str, line: str) -> str:
        """The outcome that a stub stands for; another line is its own."""
        if not line.startswith(STUB_PREFIX):
            return line
        name, start, stop = json.loads(line)["~stored"]
        return self._storage.read(values_path(folder, name), start, stop).decode()


def _stub(name: str, start: int, stop: int) -> str:
    return f'{STUB_PREFIX}["{name}",{start},{stop}]}}'


def split(settled: Iterable[Settled], most_bytes: int, most: int) -> Iterator[list[Settled]]:
    """In pages of so many bytes and items; at least one page, which may be empty."""
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
