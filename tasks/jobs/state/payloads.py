"""Payloads of a job's items: immutable, written once at submission, read by index.

They are stored as blocks of a Redis hash, or as a JSONL file in the storage with the byte offset of each block in
Redis; see `layout.py`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis
from redis.client import Pipeline

from config import keys
from config.queues import Priority
from tasks import quick_json
from tasks.jobs.state.large_values import LargeValues
from tasks.jobs.state.layout import Layout
from tasks.jobs.state.ledger_format import CARRY_SEPARATOR
from tasks.jobs.state.storage import Storage, folder_path, items_path

#: Number of items per block. A chunk reads whole blocks: small blocks waste little, large blocks need few commands.
BLOCK_ITEMS = 100
#: Number of decimal digits of an offset in `job_offsets`: allows files up to a petabyte.
OFFSET_DIGITS = 15
#: TTL in seconds of keys written before their job is created. Each further page of an upload renews it.
STAGING_S = 3600
#: TTL in seconds of the groups of a large job, which are not renewed page by page.
GROUPS_S = 86400

_RECIPE = ["kind", "cache", "on_error", "item_deadline_s", "priority", "token", "trace"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe: the immutable part of a job that a worker needs to run its items."""

    id: str
    kind: str
    spec: dict[str, Any]
    cache: str
    fill: float | None
    """The score of a failed item."""
    item_deadline_s: float | None
    priority: Priority = "normal"
    token: str = ""
    """Name of the bearer token that submitted it; empty if the server requires no token."""
    trace: str = ""
    """Trace context of the request that submitted it; empty if the request was not traced."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Items of one job to be read."""

    job_id: str
    layout: Layout
    indices: Sequence[int]


Loaded = dict[int, tuple[dict[str, Any], dict[str, Any] | None, int]]


class Payloads:
    def __init__(self, state: Redis, storage: Storage) -> None:
        self._state = state
        self._storage = storage
        self._values = LargeValues(storage)

    def write(self, job_id: str, items: Sequence[dict[str, Any]]) -> int:
        """Write payloads to Redis, before the job exists. They expire if the job is never created. Returns the number
        of blocks."""
        bodies = [quick_json.write(items[at : at + BLOCK_ITEMS]) for at in range(0, len(items), BLOCK_ITEMS)]
        # Create the key and its TTL atomically: a crash in between would leak it.
        first = self._state.pipeline(transaction=True)
        first.hset(keys.job_blocks(job_id), "0", bodies[0])
        first.expire(keys.job_blocks(job_id), STAGING_S)
        first.execute()
        rest = self._state.pipeline(transaction=False)
        for block, body in enumerate(bodies[1:], 1):
            rest.hset(keys.job_blocks(job_id), str(block), body)
        rest.execute()
        return len(bodies)

    def read_work(self, wanted: Sequence[Wanted], unknown: Sequence[str]) -> tuple[list[Loaded], dict[str, Recipe]]:
        """Return, for each element of `wanted`, a dict: index -> (payload, carry of the previous stage, attempts); and
        the recipes of the `unknown` jobs that exist. Takes a single round trip to Redis, and one read of the storage
        per run of consecutive stored blocks."""
        pipeline = self._state.pipeline(transaction=False)
        for job in unknown:
            pipeline.hget(keys.job_definition(job), "spec")
            pipeline.hmget(keys.job(job), _RECIPE)
        for each in wanted:
            self._ask(pipeline, each)
            pipeline.hmget(keys.job_carry(each.job_id), [str(index) for index in each.indices])
            pipeline.hmget(keys.job_attempts(each.job_id), [str(index) for index in each.indices])
        replies = iter(pipeline.execute())
        recipes = {}
        for job in unknown:
            spec = next(replies)
            kind, cache, on_error, item_deadline_s, priority, token, trace = next(replies)
            if kind and spec:
                fill = json.loads(on_error or "null")
                recipes[job] = Recipe(
                    job,
                    kind,
                    json.loads(spec),
                    cache or "use",
                    fill["fill"] if isinstance(fill, dict) else None,
                    float(item_deadline_s) if item_deadline_s else None,
                    priority or "normal",
                    token or "",
                    trace or "",
                )
        work: list[Loaded] = []
        for each in wanted:
            payloads = self._answer(replies, each)
            carries, attempts = next(replies), next(replies)
            work.append(
                {
                    index: (
                        payloads[index],
                        self._carry(each, carry) if carry else None,
                        int(json.loads(tried)["attempts"]) if tried else 0,
                    )
                    for index, carry, tried in zip(each.indices, carries, attempts, strict=True)
                    if index in payloads
                }
            )
        return work, recipes

    def read(self, job_id: str, layout: Layout, indices: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return payloads by index. Items without a stored payload are left out."""
        each = Wanted(job_id, layout, indices)
        pipeline = self._state.pipeline(transaction=False)
        self._ask(pipeline, each)
        return self._answer(iter(pipeline.execute()), each)

    def _carry(self, wanted: Wanted, entry: str) -> dict[str, Any]:
        _, _, line = entry.partition(CARRY_SEPARATOR)
        folder = wanted.layout.folder_of(wanted.job_id)
        return cast(dict[str, Any], quick_json.read(self._values.resolved(folder, line, folder_path(folder))))

    def _ask(self, pipeline: Pipeline, wanted: Wanted) -> None:
        wanted, _ = _unlooped(wanted)
        if wanted.layout.is_stored:
            for first, last in _runs(_blocks(wanted)):
                pipeline.getrange(
                    keys.job_offsets(wanted.job_id), first * OFFSET_DIGITS, (last + 2) * OFFSET_DIGITS - 1
                )
        else:
            pipeline.hmget(keys.job_blocks(wanted.job_id), [str(block) for block in _blocks(wanted)])

    def _answer(self, replies: Iterator[Any], wanted: Wanted) -> dict[int, dict[str, Any]]:
        within, numbers = _unlooped(wanted)
        found = self._found(replies, within)
        return {index: found[number] for index, number in numbers.items() if number in found} if numbers else found

    def _found(self, replies: Iterator[Any], wanted: Wanted) -> dict[int, dict[str, Any]]:
        asked = set(wanted.indices)
        if wanted.layout.is_stored:
            found: dict[int, dict[str, Any]] = {}
            for first, _ in _runs(_blocks(wanted)):
                lines = self._lines(wanted, cast(str, next(replies)))
                for index, line in enumerate(lines, first * BLOCK_ITEMS):
                    if index in asked:
                        found[index] = quick_json.read(line)
            return found
        trials = wanted.layout.trials
        return {
            row: item
            for block, body in zip(_blocks(wanted), next(replies), strict=True)
            if body
            for index, item in enumerate(quick_json.read(body), block * BLOCK_ITEMS)
            for row in range(index * trials, (index + 1) * trials)
            if row in asked
        }

    def _lines(self, wanted: Wanted, offsets: str) -> list[bytes]:
        if not offsets:  # the job was removed
            return []
        start, stop = int(offsets[:OFFSET_DIGITS]), int(offsets[-OFFSET_DIGITS:])
        folder = wanted.layout.folder
        return self._storage.read(items_path(folder), start, stop, folder_path(folder)).split(b"\n")[:-1]


def _unlooped(wanted: Wanted) -> tuple[Wanted, dict[int, int]]:
    """Map items of a loop to their prompts: return the prompts to read, and item -> prompt. Items of a job without a
    loop are returned unchanged, with an empty mapping."""
    loop = wanted.layout.loop
    if loop is None:
        return wanted, {}
    numbers = {index: loop.prompt(index) for index in wanted.indices}
    return Wanted(wanted.job_id, wanted.layout.of_prompts, sorted(set(numbers.values()))), numbers


def _blocks(wanted: Wanted) -> list[int]:
    size = BLOCK_ITEMS * wanted.layout.trials
    return sorted({index // size for index in wanted.indices})


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each run of consecutive numbers."""
    first = previous = None
    for number in numbers:
        if first is None or previous is None or number != previous + 1:
            if first is not None and previous is not None:
                yield first, previous
            first = number
        previous = number
    if first is not None and previous is not None:
        yield first, previous
