"""Storage faults: hosts that cannot read or write the storage now, and the work that waits for it.

A process that sees a failure records it in Redis, and deletes the record at its next success. Records that are not
renewed expire, so that a process that died leaves none behind.
"""

import json
import logging
import socket
import time
from collections import Counter
from dataclasses import dataclass
from typing import Literal, cast

from redis import Redis
from redis.exceptions import RedisError

from config import keys
from tasks.jobs.state.ledger_format import FAULT_S, PARTS
from tasks.redis_clock import ask_time, parse_time, read_time

log = logging.getLogger(__name__)

#: `read` or `written`: what cannot be done.
Access = Literal["read", "written"]

#: Delay in seconds before waiting work is tried again: at first, and at most. It grows with the time of the outage, and
#: is well below `FAULT_S`, since each attempt renews the record of the failure.
FIRST_DELAY_S, MOST_DELAY_S = 1.0, 10.0
#: Maximum number of waiting jobs that a status reads.
MOST_JOBS = 200


class StorageFaults:
    """Records the failures and successes of this process. Thread-safe; without a Redis it only keeps the time."""

    def __init__(self, state: Redis | None, name: str) -> None:
        """`name`: the storage as it is shown in the log."""
        self._state = state
        self._name = name
        self._since: dict[Access, tuple[float, float]] = {}
        """Time of the first and of the last failure since the last success."""

    def failed(self, access: Access, reason: str) -> None:
        now = time.monotonic()
        since, last = self._since.get(access, (now, float("-inf")))
        if now - last > FAULT_S:
            since = now
            log.warning("%s cannot be %s: %s; the jobs that need it wait", self._name, access, reason)
        self._since[access] = since, now
        if self._state is None:
            return
        try:
            record = json.dumps({"reason": reason, "at": read_time(self._state)})
            pipeline = self._state.pipeline(transaction=True)
            pipeline.hset(keys.storage_faults(), _field(access), record)
            pipeline.expire(keys.storage_faults(), FAULT_S)
            pipeline.execute()
        except RedisError as error:  # the next failure is recorded
            log.debug("the failure of the storage cannot be recorded: %s", error)

    def succeeded(self, access: Access) -> None:
        if access not in self._since:
            return
        if self._since.pop(access, None) is None:  # another thread was faster
            return
        log.info("%s can be %s again", self._name, access)
        if self._state is None:
            return
        try:
            self._state.hdel(keys.storage_faults(), _field(access))
        except RedisError as error:  # the record expires
            log.debug("the recovery of the storage cannot be recorded: %s", error)

    def delay_s(self, access: Access) -> float:
        """Return the delay before work is tried again: as long as the outage has lasted, within limits. The delays
        therefore double."""
        now = time.monotonic()
        since, _ = self._since.get(access, (now, now))
        return min(max(now - since, FIRST_DELAY_S), MOST_DELAY_S)


@dataclass(frozen=True, slots=True)
class Fault:
    host: str
    access: Access
    reason: str


class StorageStatus:
    """Reader of the faults of every host."""

    def __init__(self, state: Redis, name: str) -> None:
        """`name`: the storage as it is shown."""
        self._state = state
        self._name = name

    def faults(self) -> list[Fault]:
        pipeline = self._state.pipeline(transaction=False)
        pipeline.hgetall(keys.storage_faults())
        ask_time(pipeline)
        records, *time_replies = pipeline.execute()
        now = parse_time(*time_replies)
        found = []
        for field, record in sorted(records.items()):
            access, _, host = field.partition("|")
            known = json.loads(record)
            if abs(now - known["at"]) <= FAULT_S:
                found.append(Fault(host, access, known["reason"]))
        return found

    def notes(self) -> list[str]:
        """Return a sentence for each fault, with the work that waits; empty while the storage works."""
        if not (faults := self.faults()):
            return []
        waiting = self._waiting()
        hosts: dict[tuple[Access, str], list[str]] = {}
        for fault in faults:
            hosts.setdefault((fault.access, fault.reason), []).append(fault.host)
        return [
            f"storage {self._name} cannot be {access} by {', '.join(names)}: {reason}; {waiting}"
            for (access, reason), names in hosts.items()
        ]

    def _waiting(self) -> str:
        """Describe the parked work: "3 parts and 500 items of 2 jobs wait"."""
        now = read_time(self._state)
        members = cast(
            list[str],
            self._state.zrange(
                keys.storage_waiting(), f"{now - FAULT_S}", "+inf", byscore=True, offset=0, num=MOST_JOBS
            ),
        )
        pipeline = self._state.pipeline(transaction=False)
        for member in members:
            job_id, _, stage = member.partition("|")
            pipeline.hget(keys.job(job_id), f"pending:{stage}")
        counts: Counter[str] = Counter()
        jobs: set[str] = set()
        for member, pending in zip(members, pipeline.execute(), strict=True):
            job_id, _, stage = member.partition("|")
            if number := int(pending or 0):
                counts["part" if stage == PARTS else "item"] += number
                jobs.add(job_id)
        if not jobs:
            return "no job waits for it"
        work = " and ".join(_plural(counts[name], name) for name in ("part", "item") if counts[name])
        return f"{work} of {_plural(len(jobs), 'job')} wait" + ("s" if counts.total() == 1 else "")


def _field(access: Access) -> str:
    return f"{access}|{socket.gethostname()}"


def _plural(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"
