"""Leak checks after all jobs have expired: only allowed Redis keys may remain, and no files.

Each pattern comes from the function in `config/keys.py`, with the reason why such keys may remain.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from redis import Redis

from config import keys


@dataclass(frozen=True, slots=True)
class AllowedKey:
    """Pattern of keys that may remain, with the reason."""

    pattern: str
    reason: str
    expires: bool = True
    """Whether such a key must have a TTL."""


STATE_KEYS = (
    AllowedKey(keys.workers(), "names of the registered workers", expires=False),
    AllowedKey(keys.worker("*"), "description of a worker; expires after its last heartbeat"),
    AllowedKey(keys.policy_owner("*"), "owner of a policy server; expires ten seconds after its last renewal"),
    AllowedKey(keys.probe("*"), "reply to a startup probe; expires after a minute"),
    AllowedKey(keys.queues(), "names of the queues that had work; bounded by the number of slots", expires=False),
    AllowedKey(keys.loads(), "queued seconds by queue and priority; 0 when idle", expires=False),
    AllowedKey(keys.sequence(), "last chunk number", expires=False),
    AllowedKey(keys.totals(), "totals over all jobs, for metrics; a fixed set of fields", expires=False),
    AllowedKey(keys.tick(), "time of the last recovery", expires=False),
    AllowedKey(keys.clock(), "time of the server at the last recovery", expires=False),
    AllowedKey(keys.storage_faults(), "failures of the storage; expires after half a minute"),
    AllowedKey(keys.storage_waiting(), "stages that wait for the storage; expires after a minute"),
    AllowedKey(keys.job("*~*"), "payload of a submission that was not completed; expires after an hour"),
    AllowedKey(keys.idempotency("*"), "idempotency record; outlives its job by `ASSAY_IDEMPOTENCY_TTL_S`"),
    AllowedKey(keys.api_pace("*"), "learned rate of an API; expires an hour after the last call"),
    AllowedKey(keys.api_window("*"), "calls of the rate-limit window; expires after two windows"),
    AllowedKey(keys.api_holders("*"), "holders of calls in flight; expires an hour after the last call"),
    AllowedKey(keys.api_served("*", "*"), "calls by job; expires an hour after the last call"),
    AllowedKey(keys.api_circuit("*"), "circuit breaker; expires after an hour"),
    AllowedKey(keys.api_usage("*", "*"), "usage of an API on a day; expires after 100 days"),
    AllowedKey(keys.api_lessons("*", "*"), "parameters that a model rejects; expires after a day"),
    AllowedKey("_kombu.binding*", "Celery's queue bindings; bounded by the number of workers", expires=False),
    AllowedKey("unacked", "messages of killed workers, until the visibility timeout", expires=False),
    AllowedKey("unacked_index", "index of these messages by time", expires=False),
    AllowedKey("unacked_mutex", "lock of the search for these messages; expires after minutes"),
)
#: Patterns of allowed temporary files: torch creates a folder for its compiler, with the same name every time.
TEMPORARY_FILES = ("torchinductor_*",)
CACHE_KEYS = (
    AllowedKey(keys.cached("*", "*"), "cached answer; expires after `ASSAY_CACHE_TTL_S`"),
    AllowedKey(keys.asked("*", "*", "*"), "request of a cached answer, with the same TTL"),
)


def unexpected_keys(found: Mapping[str, int], allowed: Iterable[AllowedKey]) -> list[str]:
    """Return a message for each key that may not remain, or has no TTL. `found` maps keys to TTLs in seconds (-1:
    none)."""
    listed = list(allowed)
    wrong = []
    for key, ttl_s in sorted(found.items()):
        matching = [each for each in listed if fnmatchcase(key, each.pattern)]
        if not matching:
            wrong.append(f"{key} must not remain")
        elif ttl_s == -1 and all(each.expires for each in matching):
            wrong.append(f"{key} must expire, but has no TTL")
    return wrong


def by_pattern(found: Iterable[str], allowed: Iterable[AllowedKey]) -> dict[str, int]:
    """Count the keys by pattern; the first matching pattern counts."""
    listed = list(allowed)
    counts: dict[str, int] = {}
    for key in found:
        name = next((each.pattern for each in listed if fnmatchcase(key, each.pattern)), "(not allowed)")
        counts[name] = counts.get(name, 0) + 1
    return counts


def keys_with_ttl(client: Redis) -> dict[str, int]:
    """Return all keys of a Redis server with their TTL in seconds (-1: none)."""
    found = [str(key) for key in client.scan_iter(count=1000)]
    pipeline = client.pipeline(transaction=False)
    for key in found:
        pipeline.ttl(key)
    # -2: the key expired between the two commands
    return {key: ttl_s for key, ttl_s in zip(found, pipeline.execute(), strict=True) if ttl_s != -2}


def expire_staging(client: Redis) -> int:
    """Make interrupted uploads as old as those that maintenance deletes. Returns their number."""
    recent = client.zrangebyscore(keys.staging(), "(0", "+inf")
    for name in recent:
        client.zadd(keys.staging(), {str(name): 0}, xx=True)
    return len(recent)


def loads_left(client: Redis) -> list[str]:
    """Return a message for each queue whose load counter is not 0."""
    loads: dict[str, str] = client.hgetall(keys.loads())  # type: ignore[assignment]
    left = {queue: float(seconds) for queue, seconds in loads.items() if abs(float(seconds)) > 0.01}
    return [f"{keys.loads()} has {seconds} s for {queue}" for queue, seconds in left.items()]


def leftover_files(folder: Path, allowed: Iterable[str] = ()) -> Iterator[str]:
    """Yield the files and empty folders below a folder, except those that match a pattern of `allowed`."""
    patterns = list(allowed)
    for path in sorted(folder.rglob("*")) if folder.exists() else ():
        name = str(path.relative_to(folder))
        is_leaf = not path.is_dir() or not any(path.iterdir())
        if is_leaf and not any(fnmatchcase(name, each) for each in patterns):
            yield name
