"""Upload of a large job's items into the storage: streamed page by page, so that a million lines take no more memory
than a thousand. The upload is invisible until the job is created; an abandoned upload is deleted by recovery."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from redis import Redis

from config import keys
from tasks import quick_json
from tasks.errors import InvalidLine
from tasks.jobs.state.ledger import PAGE_ITEMS, Ledger
from tasks.jobs.state.payloads import BLOCK_ITEMS, GROUPS_S, OFFSET_DIGITS, STAGING_S
from tasks.jobs.state.storage import Storage, folder_path, items_path
from tasks.redis_clock import read_time

#: Number of lines written at a time: a multiple of the block size.
PAGE = 10 * BLOCK_ITEMS


class Upload:
    def __init__(self, state: Redis, storage: Storage, ledger: Ledger, job_id: str) -> None:
        self._state = state
        self._storage = storage
        self._ledger = ledger
        self.name = f"{job_id}~{uuid4().hex[:8]}"
        self.total = 0
        self._digest = hashlib.sha256()
        self._groups: dict[str, int] = {}

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def write(self, lines: Iterable[bytes], is_grouped: bool) -> None:
        """Write every line. If reading the lines raises an exception, delete the upload and raise the exception."""
        self._keep()
        try:
            file = self._storage.create(items_path(self.name))
            try:
                offset = 0
                for page in _pages(iter(lines), PAGE):
                    if is_grouped:
                        self._enroll(page)
                    file.write(b"".join(line + b"\n" for line in page))
                    offset = self._note(page, offset)
                self._write_offsets(self.total + BLOCK_ITEMS - 1, [offset])
                file.finish()
            except BaseException:
                file.abandon()
                raise
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        self._storage.delete(folder_path(self.name))
        pipeline = self._state.pipeline(transaction=False)
        pipeline.delete(keys.job_offsets(self.name), keys.job_members(self.name), keys.job_awaited(self.name))
        for page in range(self.total // PAGE_ITEMS + 1):
            pipeline.delete(keys.job_groups(self.name, str(page)))
        pipeline.zrem(keys.staging(), self.name)
        pipeline.execute()

    def _keep(self) -> None:
        """Record progress: renew the upload's time in the set of abandoned folders, and the TTL of its keys."""
        now = read_time(self._state)
        pipeline = self._state.pipeline(transaction=False)
        pipeline.zadd(keys.staging(), {self.name: now})
        for key in (keys.job_offsets(self.name), keys.job_members(self.name), keys.job_awaited(self.name)):
            pipeline.expire(key, STAGING_S)
        pipeline.execute()

    def _note(self, page: list[bytes], offset: int) -> int:
        """Record the offsets of the page's blocks. Returns the offset of the next page."""
        starts = []
        for at, line in enumerate(page):
            if at % BLOCK_ITEMS == 0:
                starts.append(offset)
            self._digest.update(line + b"\n")
            offset += len(line) + 1
        self._write_offsets(self.total, starts)
        self.total += len(page)
        self._keep()
        return offset

    def _write_offsets(self, index: int, offsets: list[int]) -> None:
        """Write offsets, beginning with the block of this item. They are written at a computed position, since an
        expired key must leave a gap, and not shift the later offsets."""
        digits = "".join(f"{offset:0{OFFSET_DIGITS}d}" for offset in offsets)
        pipeline = self._state.pipeline(transaction=True)  # a crash between two commands would leak the key
        pipeline.setrange(keys.job_offsets(self.name), index // BLOCK_ITEMS * OFFSET_DIGITS, digits)
        pipeline.expire(keys.job_offsets(self.name), STAGING_S)
        pipeline.execute()

    def _enroll(self, page: list[bytes]) -> None:
        """Store the groups of a page of items. An item without a group id forms a group by itself."""
        numbers = []
        for index, line in enumerate(page, self.total):
            group = quick_json.read(line).get("group_id")
            numbers.append(index if group is None else self._groups.setdefault(str(group), index))
        self._ledger.enroll(self.name, self.total, numbers, GROUPS_S)


def checked_lines(lines: Iterable[bytes], model: type[BaseModel]) -> Iterator[bytes]:
    """Yield the lines after validating each as an item. Raises InvalidLine with the number of an invalid line."""
    for number, line in enumerate(lines, 1):
        try:
            item = from_json(line, allow_inf_nan=False)
        except ValueError as error:
            raise InvalidLine(number, f"is not JSON ({error}).") from error
        if not isinstance(item, dict):
            raise InvalidLine(number, "is not a JSON object.")
        if place := infinite(item):
            raise InvalidLine(number, f"{place}: is not a finite number.", place)
        try:
            model.model_validate(item)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
            message = first["msg"].removeprefix("Value error, ")
            raise InvalidLine(number, f"{path}: {message}." if path else f"{message}.", path) from error
        yield line


def infinite(value: object, place: str = "") -> str:
    """Return the path of the first number that is not finite, such as 1e999; empty if every number is finite."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else place.lstrip(".")
    inner: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        inner = ((f".{name}", each) for name, each in value.items())
    elif isinstance(value, list | tuple):
        inner = ((f"[{index}]", each) for index, each in enumerate(value))
    return next((found for step, each in inner if (found := infinite(each, f"{place}{step}"))), "")


def _pages(lines: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while page := list(islice(lines, size)):
        yield page


def as_lines(items: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    return (quick_json.write(item).encode() for item in items)
