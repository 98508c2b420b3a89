"""Outcome store: reads the outcomes of a job's items in input order, and moves them from Redis to files part by part.

An outcome is a line of JSON in a Redis hash. Outcomes of a stored job move to a file of the storage once every one of
the `PART_ITEMS` items of a part has an outcome.
"""

from collections.abc import Iterator
from typing import cast
from uuid import uuid4

from redis import Redis

from config import keys
from tasks.errors import StoredFileMissing
from tasks.jobs.model import Job
from tasks.jobs.state.large_values import LargeValues
from tasks.jobs.state.ledger import Chunk, Ledger
from tasks.jobs.state.outcome import completed, is_complete
from tasks.jobs.state.payloads import Payloads
from tasks.jobs.state.storage import Storage, folder_path, part_path

#: Number of outcomes read in one command.
PAGE = 500
#: Number of items per part, whose outcomes move to a file together.
PART_ITEMS = 5000


class OutcomeStore:
    def __init__(self, state: Redis, storage: Storage, payloads: Payloads) -> None:
        self._state = state
        self._storage = storage
        self._payloads = payloads
        self._values = LargeValues(storage)

    def lines(self, job: Job, start: int, stop: int) -> Iterator[tuple[int, str | None]]:
        """Yield index and outcome of each item, in input order; None for an item without an outcome."""
        if not job.layout.is_stored:
            yield from self._in_redis(job, start, stop, {})
            return
        for part in range(start // PART_ITEMS, (stop - 1) // PART_ITEMS + 1):
            first = part * PART_ITEMS
            yield from self._of_part(job, part, max(start, first), min(stop, first + PART_ITEMS))

    def _of_part(self, job: Job, part: int, start: int, stop: int) -> list[tuple[int, str | None]]:
        file = self.file_of(job.id, part)
        while True:  # a part may be moved concurrently, and moved again after a retry: read until its file is stable
            try:
                moved = self._file_lines(file.removeprefix("~"), part * PART_ITEMS) if file else {}
                if file and not file.startswith("~"):
                    return [(index, moved[index]) for index in range(start, stop)]
                lines = list(self._in_redis(job, start, stop, moved))
                if not file and all(line for _, line in lines):
                    return lines
            except StoredFileMissing:
                if file == self.file_of(job.id, part):
                    raise
            if file == (file := self.file_of(job.id, part)):
                return lines

    def whole_part(self, job: Job, start: int, stop: int) -> tuple[Iterator[bytes] | None, int]:
        """Return the contents of the file of the part that begins at `start`, if the whole part is wanted and has a
        file, else None; and the index at which the next page begins. The file is streamed without parsing its lines."""
        if not job.layout.is_stored:
            return None, min(stop, start + PAGE)
        part, within = divmod(start, PART_ITEMS)
        end = min((part + 1) * PART_ITEMS, job.total)
        if not within and end <= stop and (file := self.file_of(job.id, part)) and not file.startswith("~"):
            return self._storage.pages(file), end
        return None, min(stop, end)

    def file_of(self, job_id: str, part: int) -> str:
        """Return the file that a part was moved to, with the prefix `~` while some of its items are run again. Empty if
        the part has no file yet."""
        return str(self._state.hget(keys.job_parts(job_id), str(part)) or "")

    def move(self, ledger: Ledger, job: Job, chunk: Chunk, part: int, over: bool) -> None:
        """Write a complete part, in which every item has an outcome, to a file, and delete its outcomes from Redis.
        Raise StorageUnavailable; nothing has changed then."""
        folder = job.layout.folder_of(job.id)
        path = part_path(folder, part, job.epoch, uuid4().hex[:8])
        first = part * PART_ITEMS
        base = self.file_of(job.id, part).removeprefix("~")
        with self._storage.writing(path, folder_path(folder)) as file:
            moved = self._file_lines(base, first) if base else {}
            for start in range(first, min(first + PART_ITEMS, job.total), PAGE):
                page = [line for _, line in self._in_redis(job, start, min(start + PAGE, job.total), moved) if line]
                file.write(("\n".join(page) + "\n").encode())
        if not ledger.move(chunk, part, path, over):
            self._storage.delete_file(path)

    def _in_redis(self, job: Job, start: int, stop: int, moved: dict[int, str]) -> Iterator[tuple[int, str | None]]:
        for first in range(start, stop, PAGE):
            indices = range(first, min(first + PAGE, stop))
            part = first // PART_ITEMS if job.layout.is_stored else 0
            key = keys.job_outcomes(job.id, str(part))
            found = cast(list[str | None], self._state.hmget(key, [str(index) for index in indices]))
            page = dict(zip(indices, found, strict=True))
            for index, line in page.items():
                if line is None:
                    page[index] = moved.get(index)
                else:
                    page[index] = self._values.resolved(job.layout.folder_of(job.id), line)
            partial = [index for index, line in page.items() if line and not is_complete(line)]
            if partial:
                payloads = self._payloads.read(job.id, job.layout, partial)
                for index in partial:
                    page[index] = completed(str(page[index]), index, payloads.get(index, {}), job.fill)
            yield from ((index, line or None) for index, line in page.items())

    def _file_lines(self, path: str, first: int) -> dict[int, str]:
        return dict(enumerate(self._storage.read(path).decode().split("\n"), first))
