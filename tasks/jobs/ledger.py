"""The ledger: every change of a job's state, as one script each, in `scripts/`.

Thin on purpose: it turns arguments into ARGV and replies into values. What a script keeps true stands at its top.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from redis import Redis
from redis.client import Pipeline

from config import keys
from config.queues import PRIORITIES
from tasks import totals
from tasks.errors import StorageUnavailable

_SCRIPTS = Path(__file__).with_name("scripts")
#: What all scripts share, in this order.
_SHARED = ("common", "part_samples")

#: Seconds of work a chunk aims at, and the least worth a message of its own.
CHUNK_S = 1.5
LEAST_CHUNK_S = 0.1
#: Items of a chunk at most: keeps every script under a few milliseconds.
MOST_ITEMS = 500
#: As in `common.lua`: items of one page of bitmaps and groups, and digits of a group.
PAGE_ITEMS = 8192
GROUP_DIGITS = 10
#: The stage that moves outcomes of a stored job out of Redis; its items are parts.
PARTS = "~parts"
#: Workers an item may kill while it runs alone before it fails as `worker_lost`.
MOST_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Message:
    """One chunk to be announced on a queue."""

    queue: str
    chunk: str
    job: str
    priority: str


@dataclass(frozen=True, slots=True)
class Reader:
    """A queue to be filled: how many tasks read it at a time, what its worker has loaded, and what else it takes."""

    queue: str
    consumers: int
    loaded: str = ""
    also: str = ""
    """A kind of work besides that of its pool: `policy` where the device has a policy server."""


@dataclass(frozen=True, slots=True)
class Chunk:
    id: str
    job: str
    stage: str
    items: tuple[int, ...]
    alone: bool
    layout: str
    token: str


@dataclass(frozen=True, slots=True)
class Settled:
    """An item's result as the ledger counts it."""

    index: int
    status: str
    error_type: str
    cached: bool
    next: str
    outcome: str
    bundle: str = ""
    """Of a rollout: what is put into its sample queue with the step that counts it, see `part_samples.lua`."""
    again: str = ""
    """Of a status `retry`: "<seconds> <attempts>", and `rests` if the whole stage is to rest so long."""

    def with_outcome(self, outcome: str) -> "Settled":
        return replace(self, outcome=outcome)

    def with_bundle(self, bundle: str) -> "Settled":
        return replace(self, bundle=bundle)


@dataclass(frozen=True, slots=True)
class Tick:
    """What a round of the clockwork found."""

    is_ours: bool
    """False: another process has just done the round."""
    is_forgiving: bool
    """Lapsed heartbeats do not count now."""
    expired: list[str]
    """Jobs to be removed."""
    abandoned: list[str]
    """Folders of uploads that were given up."""


@dataclass(frozen=True, slots=True)
class Reopened:
    """An item to be run again, with what is to be taken out of the counters; no status: it has no outcome."""

    index: int
    status: str = ""
    error_type: str = ""
    cached: bool = False


def expand(ranges: str) -> tuple[int, ...]:
    """The items of "0-4,7"."""
    items: list[int] = []
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        items.extend(range(int(first), int(last or first) + 1))
    return tuple(items)


def compress(items: Iterable[int]) -> str:
    """Items as ranges: "0-4,7"."""
    parts: list[str] = []
    first = last = -2
    for index in sorted(items):
        if index == last + 1:
            last = index
            continue
        if last >= 0:
            parts.append(f"{first}-{last}" if last > first else str(first))
        first = last = index
    if last >= 0:
        parts.append(f"{first}-{last}" if last > first else str(first))
    return ",".join(parts)


def prelude() -> str:
    """What comes before every script that changes jobs."""
    return keys.lua_functions() + totals.lua() + "".join((_SCRIPTS / f"{name}.lua").read_text() for name in _SHARED)


class Ledger:
    def __init__(self, state: Redis) -> None:
        self.state = state
        before = prelude()
        self._scripts = {
            path.stem: state.register_script(before + path.read_text())
            for path in _SCRIPTS.glob("*.lua")
            if path.stem not in _SHARED
        }

    def _call(self, name: str, *arguments: object, client: Redis | Pipeline | None = None) -> Any:
        return self._scripts[name](keys=[], args=[str(each) for each in arguments], client=client)

    # --- submit ---

    def prefill(self, job: str, stage: str, outcomes: Mapping[int, str], lifetime_s: int) -> None:
        self._call("prefill", job, stage, lifetime_s, *(part for pair in outcomes.items() for part in pair))

    def create(self, job: str, staged: str, fields: Mapping[str, object], pending: Sequence[tuple[str, str]]) -> bool:
        """Make what was written under the name `staged` the job's. False when the job exists already.

        Must not be repeated by a client that retries by itself: the second answer would say that the job is another's.
        Raises StorageUnavailable when the files of a stored job were swept away meanwhile.
        """
        flat = [part for pair in fields.items() for part in pair]
        stored = "stored" if "part_items" in fields else ""
        entries = (part for pair in pending for part in pair)
        created = int(self._call("create", job, staged, len(fields), *flat, stored, *entries))
        if created < 0:
            raise StorageUnavailable("The upload stood still for so long that it was given up: send it again.")
        return created == 1

    def enroll(self, job: str, first: int, groups: Sequence[int], lifetime_s: int) -> None:
        """The groups of consecutive items, each named by the index of its first item."""
        start = 0
        while start < len(groups):
            # The script writes one page of the ledger, and few enough of it to be quick.
            stop = min(start + 1024, start + PAGE_ITEMS - (first + start) % PAGE_ITEMS, len(groups))
            members: dict[int, list[int]] = {}
            for index, group in enumerate(groups[start:stop], first + start):
                members.setdefault(group, []).append(index)
            digits = "".join(f"{group:0{GROUP_DIGITS}d}" for group in groups[start:stop])
            ranges = (part for group, indices in members.items() for part in (group, compress(indices)))
            self._call("enroll", job, lifetime_s, first + start, digits, *ranges)
            start = stop

    def append(self, job: str, token: str, payloads: Sequence[str]) -> int:
        """The index of the first; -1 when the job takes no more."""
        return int(self._call("append", job, token, *payloads))

    def close(self, job: str) -> str:
        return str(self._call("close", job))

    # --- dispatch ---

    def fill(self, pool: str, readers: Sequence[Reader]) -> tuple[int, list[Message]]:
        """The number of chunks dispatched, and the messages that announce them."""
        consumers = sum(each.consumers for each in readers)
        flat = [
            part
            for each in readers
            for part in (each.queue, each.consumers, each.loaded, f"{pool},{each.also}" if each.also else pool)
        ]
        number, *made = self._call("fill", pool, CHUNK_S, LEAST_CHUNK_S, MOST_ITEMS, consumers, *flat)
        return int(number), [Message(*made[at : at + 4]) for at in range(0, len(made), 4)]

    def ready(self, pool: str) -> int:
        """How many jobs have items that wait for a chunk on this pool."""
        return sum(self.state.zcard(keys.ready(pool, priority)) for priority in PRIORITIES)

    def waiting(self, queue: str) -> Message | None:
        """The best chunk that waits on a queue."""
        for chunk in self.state.zrange(keys.dispatched(queue), 0, 0):
            job, priority = self.state.hmget(keys.chunk(str(chunk)), ["job", "priority"])
            if job and priority:
                return Message(queue, str(chunk), str(job), str(priority))
        return None

    def take(
        self, queue: str, chunk: str, incarnation: str, worker: str, token: str, adopt: bool = True
    ) -> list[Chunk]:
        taken = self._call("take", queue, chunk, incarnation, worker, token, int(adopt))
        rows = (taken[at : at + 6] for at in range(0, len(taken), 6))
        return [
            Chunk(id_, job, stage, expand(items), mode == "!", layout, token)
            for id_, job, stage, items, mode, layout in rows
        ]

    def begin(
        self, incarnation: str, token: str, deadline_s: float, batch: Sequence[tuple[str, Sequence[tuple[int, str]]]]
    ) -> str:
        """One letter an item, see the script. `batch` holds, for each chunk, indices and request hashes."""
        flat: list[object] = []
        for chunk, items in batch:
            flat += [chunk, len(items), *(part for pair in items for part in pair)]
        return str(self._call("begin", incarnation, token, deadline_s, *flat))

    def commit(
        self,
        chunk: Chunk,
        worker: str,
        seconds: float,
        settled: Sequence[Settled],
        released: Sequence[str] = (),
        over: bool = False,
        client: Redis | Pipeline | None = None,
    ) -> tuple[int, str]:
        """Items counted now, and the job's state. Through a pipeline the answer comes with its execution."""
        flat: list[object] = []
        for each in settled:
            outcome = f"{each.outcome}\n{each.bundle}" if each.bundle else each.outcome
            flat += [each.index, each.status, each.error_type, each.again or int(each.cached), each.next, outcome]
        reply = self._call(
            "commit", chunk.job, chunk.stage, chunk.id, worker, f"{seconds:.6f}", int(over), chunk.token,
            len(settled), *flat, *released, client=client,
        )  # fmt: skip
        return (0, "") if isinstance(reply, Pipeline) else (int(reply[0]), str(reply[1]))

    def move(self, chunk: Chunk, part: int, file: str, over: bool) -> tuple[bool, str]:
        """Whether the file has the part now, and the file that it replaces, if any."""
        wanted, replaced, _ = self._call("move", chunk.job, chunk.id, chunk.token, part, file, int(over))
        return bool(wanted), str(replaced)

    # --- recovery ---

    def reclaim(self, incarnation: str, proven: bool) -> int:
        return int(self._call("reclaim", incarnation, int(proven), MOST_DEATHS))

    def tick(self, who: str, every_s: float, stall_s: float, grace_s: float, staging_s: float) -> Tick:
        first, *rest = self._call("tick", who, every_s, stall_s, grace_s, staging_s)
        return Tick(
            is_ours=first != -1,
            is_forgiving=first == 1,
            expired=[job for job in rest if not job.startswith("~")],
            abandoned=[folder[1:] for folder in rest if folder.startswith("~")],
        )

    def tend(self, idle_s: float) -> None:
        """What rollouts need now and then: lapsed batches go back, and as many prompts are begun as may be. One that
        nobody has asked anything for so long is ended."""
        self._call("tend", idle_s)

    def is_late(self, incarnation: str) -> bool:
        """Whether this process is past the deadline of its batch; then that is noted for who buries it."""
        return bool(self._call("late", incarnation))

    def unqueue(self, queue: str, mode: str = "same") -> int:
        return int(self._call("unqueue", queue, mode))

    # --- lifecycle ---

    def cancel(self, job: str) -> str:
        return str(self._call("cancel", job))

    def pause(self, job: str, paused: bool) -> str:
        return str(self._call("pause", job, int(paused)))

    def remove(self, job: str) -> bool:
        return bool(self._call("remove", job))

    def reopen(self, job: str, items: Sequence[Reopened]) -> int:
        """Take a page of items out of the counters. -1 when the job's state forbids it."""
        flat = (part for each in items for part in (each.index, each.status, each.error_type, int(each.cached)))
        return int(self._call("reopen", job, 0, *flat))

    def run_reopened(self, job: str, entries: Sequence[str]) -> int:
        """After the last page: the items, as pending entries, are to be run."""
        return int(self._call("reopen", job, 1, *entries))
