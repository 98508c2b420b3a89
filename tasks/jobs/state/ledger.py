"""Ledger: the state of jobs in Redis. Every change of it is an atomic Lua script.

The Python code only serializes arguments into ARGV and parses the replies. The header of each script in `scripts/`
states its arguments and its invariants.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.exceptions import NoScriptError, TimeoutError

from config import keys
from config.queues import PRIORITIES
from tasks import lua
from tasks.errors import RedisUnavailable, StorageUnavailable
from tasks.jobs.state.chunk_size import CHUNK_S, LEAST_CHUNK_S, MOST_ITEMS
from tasks.jobs.state.layout import Layout
from tasks.jobs.state.ledger_format import FAULT_S, GROUP_DIGITS, PAGE_ITEMS, PARTS

__all__ = [
    "PAGE_ITEMS",
    "PARTS",
    "Attachment",
    "Chunk",
    "Commit",
    "Ledger",
    "Message",
    "Reader",
    "Reopened",
    "Retry",
    "Settled",
    "Staged",
]

_SCRIPTS = Path(__file__).with_name("scripts")

#: Maximum number of items enrolled by one call of the script.
ENROLLED_ITEMS = 1024
#: Seconds between two audits of a job.
AUDIT_S = 5.0
#: Seconds without a call after which the retry of a job counts as interrupted.
INTERRUPTED_S = 10.0
#: Maximum number of jobs audited by one call of the script.
AUDITED_JOBS = 100
#: Number of workers that an item may kill while it runs alone, before it fails as `worker_lost`.
MOST_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Message:
    """One chunk to be announced on a queue."""

    queue: str
    chunk: str
    job_id: str
    priority: str


@dataclass(frozen=True, slots=True)
class Reader:
    """A queue to be filled: its number of concurrent consumers, the models loaded by its worker, and its pools."""

    queue: str
    consumers: int
    loaded: str = ""
    also: str = ""
    """A second pool that the queue serves: `policy` if the device has a policy server."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that a worker has taken."""

    id: str
    job_id: str
    stage: str
    items: tuple[int, ...]
    alone: bool
    layout: Layout
    lease_id: str
    """Identifies the holder: a commit with another lease_id is ignored."""


@dataclass(frozen=True, slots=True)
class Retry:
    """An item that is pending again after a delay, instead of being counted."""

    delay_s: float
    attempts: int
    rests: bool = False
    """Suspend the whole stage of its job until then."""

    def __str__(self) -> str:
        return json.dumps({"delay_s": round(self.delay_s, 3), "attempts": self.attempts, "rests": self.rests})


@dataclass(frozen=True, slots=True)
class Attachment:
    """A value that the hooks of a job's kind get in the atomic step that counts its item, such as the samples of a
    rollout."""

    about: str
    """JSON, for the hook."""
    body: str

    def __len__(self) -> int:
        return len(self.about) + len(self.body)


@dataclass(frozen=True, slots=True)
class Settled:
    """An item's result as the ledger counts it."""

    index: int
    status: str
    error_type: str
    cached: bool
    next: str
    outcome: str
    attachment: Attachment | None = None
    retry: Retry | None = None
    """Set with the status `retry`. The outcome then counts only if a deadline would pass before the retry."""

    def with_outcome(self, outcome: str) -> "Settled":
        return replace(self, outcome=outcome)

    def with_attachment(self, attachment: Attachment | None) -> "Settled":
        return replace(self, attachment=attachment)


@dataclass(frozen=True, slots=True)
class Commit:
    """Results of a chunk to be counted together, see `commit.lua`."""

    chunk: Chunk
    worker: str
    seconds: float
    """Seconds that the items took."""
    settled: Sequence[Settled]
    released: Sequence[str] = ()
    """Requests whose claims are released."""
    over: bool = False
    """The chunk ends with this commit."""

    def arguments(self) -> list[str]:
        """Return the arguments of the script."""
        items: list[object] = []
        attachments: list[object] = []
        for each in self.settled:
            items += [each.index, each.status, each.error_type, each.retry or int(each.cached), each.next, each.outcome]
            if each.attachment:
                attachments += [each.index, each.attachment.about, each.attachment.body]
        head = (
            self.chunk.job_id,
            self.chunk.stage,
            self.chunk.id,
            self.worker,
            f"{self.seconds:.6f}",
            int(self.over),
            self.chunk.lease_id,
            len(self.settled),
        )
        return [str(each) for each in (*head, *items, len(attachments) // 3, *attachments, *self.released)]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of the state Redis that must have a job's creation and its counted results before the caller continues,
    so that a failover does not lose them."""

    number: int = 0
    timeout_s: float = 2.0


NO_REPLICAS = Replicas()


@dataclass(frozen=True, slots=True)
class Staged:
    """Items of a job that is not created yet, stored under a temporary name."""

    name: str
    blocks: int = 0
    """Number of blocks of items in Redis; 0 if the items are in files."""
    is_grouped: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Result of one round of recovery."""

    is_forgiving: bool = False
    """Lapsed heartbeats are ignored, because Redis or every process has just stalled."""
    set_back_s: float = 0.0
    """Seconds by which the clock of the Redis server was set back since the last round."""
    abandoned: Sequence[str] = ()
    """Folders of uploads that were abandoned."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an audit of jobs that stand still."""

    repaired: Mapping[str, int]
    """Number of items that are pending again, by job: they were in no place."""
    interrupted: Sequence[str] = ()
    """Jobs whose retry was interrupted."""


@dataclass(frozen=True, slots=True)
class Reopened:
    """An item to be run again, with the values that its outcome added to the counters. The status is empty for an item
    without an outcome."""

    index: int
    status: str = ""
    error_type: str = ""
    cached: bool = False


def expand(ranges: str) -> tuple[int, ...]:
    """Return the items of ranges such as "0-4,7"."""
    items: list[int] = []
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        items.extend(range(int(first), int(last or first) + 1))
    return tuple(items)


def compress(items: Iterable[int]) -> str:
    """Return items as ranges such as "0-4,7"."""
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


class Ledger:
    def __init__(self, state: Redis, hooks: Iterable[Path] = (), replicas: Replicas = NO_REPLICAS) -> None:
        """`hooks`: Lua modules of kinds that take part in the ledger's scripts, see `tasks/lua.py`."""
        self.state = state
        self._replicas = replicas
        found = tuple(hooks)
        self._scripts = {path.stem: state.register_script(lua.load(path, found)) for path in _SCRIPTS.glob("*.lua")}

    def _call(self, name: str, *arguments: object) -> Any:
        return self._scripts[name](keys=[], args=[str(each) for each in arguments])

    def _call_durably(self, name: str, calls: Sequence[Sequence[object]]) -> list[Any]:
        """Call a script with each list of arguments, in a single round trip, and wait for the replicas."""
        script = self._scripts[name]
        if len(calls) == 1 and not self._replicas.number:
            return [self._call(name, *calls[0])]
        try:
            return self._evaluate(script.sha, calls)
        except NoScriptError:  # Redis has restarted. A pipeline cannot load a script without another round trip.
            self.state.script_load(script.script)
            return self._evaluate(script.sha, calls)

    def _evaluate(self, sha: str, calls: Sequence[Sequence[object]]) -> list[Any]:
        pipeline = self.state.pipeline(transaction=False)
        for arguments in calls:
            pipeline.evalsha(sha, 0, *(str(each) for each in arguments))
        if not self._replicas.number:
            return list(pipeline.execute())
        # The key is written so that a repeated call, which changes nothing, waits for the writes of the first.
        pipeline.set(keys.fence(), 1)
        pipeline.wait(self._replicas.number, int(1000 * self._replicas.timeout_s))
        *replies, _, confirmed = pipeline.execute()
        if confirmed < self._replicas.number:
            raise TimeoutError(
                f"{confirmed} of {self._replicas.number} replicas had the write after {self._replicas.timeout_s:g} s: "
                "start them, or correct ASSAY_REDIS_REPLICAS"
            )
        return replies

    def confirm(self) -> None:
        """Wait until the replicas have every earlier write."""
        if self._replicas.number:
            self._evaluate("", [])

    # --- submit ---

    def prefill(self, job_id: str, stage: str, outcomes: Mapping[int, str], lifetime_s: int) -> None:
        """Store outcomes that the cache has, before the job exists."""
        self._call("prefill", job_id, stage, lifetime_s, *(part for pair in outcomes.items() for part in pair))

    def create(
        self,
        job_id: str,
        staged: Staged,
        definition: Mapping[str, str],
        fields: Mapping[str, object],
        pending: Sequence[tuple[str, str]],
    ) -> bool:
        """Create the job from the items that were staged. False when the job exists already. `definition` and `fields`
        are the fields of `keys.job_definition` and `keys.job`.

        A Redis client that retries automatically must not repeat the call: the second reply would say that the job
        exists.
        Raises StorageUnavailable when the files of a stored job were deleted meanwhile, and RedisUnavailable when Redis
        lost a part of the staged keys.
        """
        flat = [part for pair in (*definition.items(), *fields.items()) for part in pair]
        is_stored = int("part_items" in fields)
        entries = (part for pair in pending for part in pair)
        about = (staged.name, is_stored, staged.blocks, int(staged.is_grouped))
        (reply,) = self._call_durably("create", [[job_id, *about, len(definition), len(fields), *flat, *entries]])
        created = int(reply)
        if created == -2:
            raise RedisUnavailable("Redis lost a part of this request, in a failover or a restart: send it again.")
        if created < 0:
            raise StorageUnavailable("The upload made no progress for too long and was abandoned: send it again.")
        return created == 1

    def enroll(self, job_id: str, first: int, groups: Sequence[int], lifetime_s: int) -> None:
        """Store the groups of consecutive items, each named by the index of its first item, before the job exists."""
        start = 0
        while start < len(groups):
            # A call of the script writes to a single page of the ledger, and few items, so that it is fast.
            page_left = PAGE_ITEMS - (first + start) % PAGE_ITEMS
            stop = min(start + ENROLLED_ITEMS, start + page_left, len(groups))
            members: dict[int, list[int]] = {}
            for index, group in enumerate(groups[start:stop], first + start):
                members.setdefault(group, []).append(index)
            digits = "".join(f"{group:0{GROUP_DIGITS}d}" for group in groups[start:stop])
            ranges = (part for group, indices in members.items() for part in (group, compress(indices)))
            self._call("enroll", job_id, lifetime_s, first + start, digits, *ranges)
            start = stop

    # --- dispatch ---

    def fill(self, pool: str, readers: Sequence[Reader], queue: str = "") -> tuple[int, list[Message]]:
        """Fill the queues of a pool. Returns the number of chunks that wait on `queue` now, and the messages that
        announce the new chunks."""
        consumers = sum(each.consumers for each in readers)
        flat = [
            part
            for each in readers
            for part in (each.queue, each.consumers, each.loaded, f"{pool},{each.also}" if each.also else pool)
        ]
        sizes = (CHUNK_S, LEAST_CHUNK_S, MOST_ITEMS)
        waiting, *made = self._call("fill_queues", pool, *sizes, consumers, queue, secrets.token_hex(4), *flat)
        return int(waiting), [Message(*made[at : at + 4]) for at in range(0, len(made), 4)]

    def ready(self, pool: str) -> int:
        """Return the number of jobs with pending items on this pool, which wait for a chunk."""
        return sum(self.state.zcard(keys.ready(pool, priority)) for priority in PRIORITIES)

    def waiting(self, queue: str) -> Message | None:
        """Return the best chunk that waits on a queue."""
        for chunk in self.state.zrange(keys.dispatched(queue), 0, 0):
            job_id, priority = self.state.hmget(keys.chunk(str(chunk)), ["job_id", "priority"])
            if job_id and priority:
                return Message(queue, str(chunk), str(job_id), str(priority))
        return None

    def take(
        self, queue: str, chunk: str, incarnation: str, worker: str, lease_id: str, adopt: bool = True
    ) -> list[Chunk]:
        """Lease the chunk that a message names, or the next best chunk of the queue, and adopt more chunks that can run
        in the same batch. Idempotent by lease_id."""
        taken = self._call("take", queue, chunk, incarnation, worker, lease_id, int(adopt))
        rows = (taken[at : at + 6] for at in range(0, len(taken), 6))
        return [
            Chunk(id_, job_id, stage, expand(items), mode == "!", Layout.parse(layout), lease_id)
            for id_, job_id, stage, items, mode, layout in rows
        ]

    def begin(
        self,
        incarnation: str,
        lease_id: str,
        deadline_s: float,
        batch: Sequence[tuple[str, Sequence[tuple[int, str]]]],
    ) -> str:
        """Begin an engine batch: claim its requests. `batch` holds, for each chunk, indices and request hashes. Returns
        one letter per item, see `begin.lua`."""
        flat: list[object] = []
        for chunk, items in batch:
            flat += [chunk, len(items), *(part for pair in items for part in pair)]
        return str(self._call("begin", incarnation, lease_id, deadline_s, *flat))

    def commit(
        self,
        chunk: Chunk,
        worker: str,
        seconds: float,
        settled: Sequence[Settled],
        released: Sequence[str] = (),
        over: bool = False,
    ) -> tuple[int, str]:
        """Count results. Idempotent. Returns the number of items counted now, and the job's state."""
        (reply,) = self.commit_all([Commit(chunk, worker, seconds, settled, released, over)])
        return reply

    def commit_all(self, commits: Sequence["Commit"]) -> list[tuple[int, str]]:
        """Count the results of several commits in a single round trip. Idempotent. Returns, for each commit, the number
        of items counted now, and the job's state."""
        replies = self._call_durably("commit", [commit.arguments() for commit in commits])
        return [(int(counted), str(state)) for counted, state in replies]

    def move(self, chunk: Chunk, part: int, file: str, over: bool) -> bool:
        """Move the outcomes of a part to a file that has a copy of them. Returns whether it is the part's file now."""
        return bool(self._call("move", chunk.job_id, chunk.id, chunk.lease_id, part, file, int(over)))

    def park(self, job_id: str, stage: str, delay_s: float, ending: Iterable[Chunk]) -> int:
        """Suspend a stage whose storage is unavailable, and end chunks of it. Idempotent. Returns the number of items
        that are pending again."""
        chunks = (part for chunk in ending for part in (chunk.id, chunk.lease_id))
        return int(self._call("park", job_id, stage, f"{delay_s:.3f}", FAULT_S, *chunks))

    # --- recovery ---

    def reclaim(self, incarnation: str, proven: bool) -> int:
        """Reclaim the chunks of a dead process. Returns the number of items that are pending again."""
        return int(self._call("reclaim", incarnation, int(proven), MOST_DEATHS))

    def held(self, incarnation: str) -> list[tuple[str, str]]:
        """Return chunk id and lease_id of the chunks that this process holds by the ledger."""
        chunks = sorted(cast(set[str], self.state.smembers(keys.held(incarnation))))
        pipeline = self.state.pipeline(transaction=False)
        for chunk in chunks:
            pipeline.hget(keys.chunk(chunk), "lease_id")
        return [(chunk, str(lease_id or "")) for chunk, lease_id in zip(chunks, pipeline.execute(), strict=True)]

    def return_chunks(self, incarnation: str, chunks: Iterable[tuple[str, str]]) -> tuple[int, int]:
        """Return chunks (chunk id and lease_id) that this process holds but does not run. Returns the number of chunks,
        and the number of items that are pending again."""
        returned, items = self._call("return_chunks", incarnation, *(part for pair in chunks for part in pair))
        return int(returned), int(items)

    def tick(self, every_s: float, stall_s: float, grace_s: float, staging_s: float) -> Tick | None:
        """Run one round of recovery. None when another process has just run one."""
        if not (reply := self._call("tick", every_s, stall_s, grace_s, staging_s)):
            return None
        forgiving, set_back_s, abandoned = reply
        return Tick(forgiving == 1, float(set_back_s), abandoned)

    def audit(self, job_id: str = "") -> Audit:
        """Repair this job, or a page of the active jobs whose audit is due, see `audit.lua`."""
        repaired, interrupted = self._call("audit", job_id, AUDIT_S, INTERRUPTED_S, AUDITED_JOBS)
        pairs = {str(repaired[at]): int(repaired[at + 1]) for at in range(0, len(repaired), 2)}
        return Audit(pairs, interrupted)

    def remove_expired(self, most: int) -> int:
        """Remove up to `most` jobs whose time to live is over. Returns how many were due."""
        return int(self._call("remove_expired", most))

    def tend(self, idle_s: float) -> None:
        """Run the periodic maintenance of kinds. A rollout that no client has used for `idle_s` is ended."""
        self._call("tend", idle_s)

    def is_late(self, incarnation: str) -> bool:
        """Check whether a process is past the deadline of its batch. If so, its items time out once it dies."""
        return bool(self._call("late", incarnation))

    def unqueue(self, queue: str, mode: str = "same") -> int:
        """Undo the dispatch of chunks that no worker has taken, and set the queue's mode. Returns their number."""
        return int(self._call("unqueue", queue, mode))

    # --- lifecycle ---

    def cancel(self, job_id: str) -> str:
        """Cancel an active job. Returns the job's state, or "" when the job does not exist."""
        return str(self._call("cancel", job_id))

    def pause(self, job_id: str, paused: bool) -> str:
        """Pause or resume a job. Returns the job's state, or "" when the job does not exist."""
        return str(self._call("pause", job_id, int(paused)))

    def remove(self, job_id: str) -> bool:
        """Remove a job and every record of it. False when the job is still runnable."""
        return bool(self._call("remove", job_id))

    def reopen(self, job_id: str, items: Sequence[Reopened]) -> int:
        """Subtract a page of items from the counters. Returns -1 when the job's state does not allow a retry."""
        flat = (part for each in items for part in (each.index, each.status, each.error_type, int(each.cached)))
        return int(self._call("reopen", job_id, 0, *flat))

    def run_reopened(self, job_id: str, entries: Sequence[str]) -> int:
        """Make the reopened items pending, as entries, after the last page."""
        return int(self._call("reopen", job_id, 1, *entries))
