"""Outcomes too long for Redis: a file has them, and a stub takes their place."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from uuid import uuid4

from tasks.jobs.ledger import Settled
from tasks.jobs.storage import Storage, file_path, values_path

#: Bytes of an outcome that Redis holds at most.
LINE_BYTES = 64 * 1024
#: The same of a bundle, of which there are few at a time.
BUNDLE_BYTES = 512 * 1024
#: Words before the body of a bundle.
BUNDLE_HEAD = 6
_STUB = '{"~stored":'


class Values:
    def __init__(self, storage: Storage, hosts: Callable[[], Iterable[str]] = tuple) -> None:
        """`hosts`: all that may want to read what is written here."""
        self._storage = storage
        self._hosts = hosts

    def shortened(self, folder: str, settled: Sequence[Settled]) -> list[Settled]:
        """The same, with long outcomes put into a file; they stay where not every host could read it."""
        settled = [each.with_bundle(self.shortened_bundle(folder, each.bundle)) for each in settled]
        long = [each for each in settled if len(each.outcome) > LINE_BYTES]
        if not long or not self._storage.reaches(self._hosts()):
            return settled
        token, at = uuid4().hex, 0
        file = self._storage.create(values_path(folder, token))
        stubs: dict[int, str] = {}
        for each in long:
            body = each.outcome.encode()
            file.write(body)
            stubs[each.index] = f'{_STUB}["{token}",{at},{at + len(body)}]}}'
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

    def shortened_bundle(self, folder: str, bundle: str) -> str:
        """The same with a long body in a file of its own, which goes when its samples were used."""
        if len(bundle) <= BUNDLE_BYTES or not self._storage.reaches(self._hosts()):
            return bundle
        *head, text = bundle.split(" ", BUNDLE_HEAD)
        token, body = uuid4().hex, text.encode()
        self._storage.put(values_path(folder, token), body)
        return " ".join([*head, f'{_STUB}["{token}",0,{len(body)}]}}'])

    def delete(self, folder: str, stub: str) -> None:
        """The file of a bundle."""
        self._storage.delete_file(values_path(folder, json.loads(stub)["~stored"][0]))

    def resolved(self, folder: str, line: str) -> str:
        """The outcome that a stub stands for; another line is its own."""
        if not line.startswith(_STUB):
            return line
        token, start, stop = json.loads(line)["~stored"]
        return self._storage.read(values_path(folder, token), start, stop).decode()


def split(settled: Iterable[Settled], most_bytes: int, most: int) -> Iterator[list[Settled]]:
    """In pages of so many bytes and items; at least one page, which may be empty."""
    page: list[Settled] = []
    size = 0
    for each in settled:
        length = len(each.outcome) + len(each.bundle)
        if page and (size + length > most_bytes or len(page) == most):
            yield page
            page, size = [], 0
        page.append(each)
        size += length
    yield page
