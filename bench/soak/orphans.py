"""What may be left when every job has expired: keys with a reason to stay, and no files.

Each pattern is made by `config/keys.py`'s own function, and has its reason beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from redis import Redis

from config import keys


@dataclass(frozen=True, slots=True)
class Stay:
    pattern: str
    reason: str
    lapses: bool = True
    """Whether it must have a time to live."""


STATE = (
    Stay(keys.workers(), "names of the workers that are there", lapses=False),
    Stay(keys.worker("*"), "what a worker is, its models and policies; lapses after its last heartbeat"),
    Stay(keys.policy_owner("*"), "who talks to a policy server; lapses ten seconds after it last said so"),
    Stay(keys.probe("*"), "the answer to a probe at start; lives a minute"),
    Stay(keys.queues(), "queues that were ever filled, as many as there are slots", lapses=False),
    Stay(keys.loads(), "seconds of work by queue and priority, all 0 by now", lapses=False),
    Stay(keys.sequence(), "the last chunk number", lapses=False),
    Stay(keys.totals(), "what was counted over all jobs, for metrics; as many fields as there are names", lapses=False),
    Stay(keys.tick(), "when recovery last ran", lapses=False),
    Stay(keys.tick_lock(), "who runs recovery now; lives a second"),
    Stay(keys.job("*~*"), "what was written ahead of a job that was never made; lives an hour"),
    Stay(keys.idempotency("*"), "outlives its job, for `ASSAY_IDEMPOTENCY_TTL_S`"),
    Stay(keys.api_pace("*"), "the pace of an API; lives an hour after the last call"),
    Stay(keys.api_window("*"), "calls of the window; lives two windows"),
    Stay(keys.api_holders("*"), "who has calls in flight; lives an hour after the last"),
    Stay(keys.api_served("*", "*"), "calls by job; lives an hour after the last call"),
    Stay(keys.api_circuit("*"), "failures in a row; lives an hour"),
    Stay(keys.api_usage("*", "*"), "what an API was used for on a day; lives 100 days"),
    Stay(keys.api_lessons("*", "*"), "what a model cannot take; lives a day"),
    Stay("_kombu.binding*", "Celery's queues and who reads them, as many as there are workers", lapses=False),
    Stay("unacked", "messages of killed workers, until the visibility timeout", lapses=False),
    Stay("unacked_index", "the same, by time", lapses=False),
    Stay("unacked_mutex", "who looks for such messages now; lives minutes"),
)
#: Of the folder for temporary files: torch makes one for its compiler, the same every time.
TEMPORARY = ("torchinductor_*",)
CACHE = (
    Stay(keys.cached("*", "*"), "a cached answer, for `ASSAY_CACHE_TTL_S`"),
    Stay(keys.asked("*", "*", "*"), "what determined it, as long"),
)


def orphans(found: Mapping[str, int], stays: Iterable[Stay]) -> list[str]:
    """Of keys with their time to live in seconds (-1: none): those without a reason to be there."""
    listed = list(stays)
    wrong = []
    for key, ttl_s in sorted(found.items()):
        reasons = [stay for stay in listed if fnmatchcase(key, stay.pattern)]
        if not reasons:
            wrong.append(f"{key} has no reason to be there")
        elif ttl_s == -1 and all(stay.lapses for stay in reasons):
            wrong.append(f"{key} should lapse, and has no time to live")
    return wrong


def by_pattern(found: Iterable[str], stays: Iterable[Stay]) -> dict[str, int]:
    """How many keys each pattern accounts for; the first that fits counts."""
    listed = list(stays)
    counts: dict[str, int] = {}
    for key in found:
        name = next((stay.pattern for stay in listed if fnmatchcase(key, stay.pattern)), "(no reason)")
        counts[name] = counts.get(name, 0) + 1
    return counts


def keys_of(client: Redis) -> dict[str, int]:
    found = [str(key) for key in client.scan_iter(count=1000)]
    pipeline = client.pipeline(transaction=False)
    for key in found:
        pipeline.ttl(key)
    # -2: it lapsed between the two looks
    return {key: ttl_s for key, ttl_s in zip(found, pipeline.execute(), strict=True) if ttl_s != -2}


def hurry_staging(client: Redis) -> int:
    """Make uploads that were cut off as old as those that are swept away. How many there were."""
    young = client.zrangebyscore(keys.staging(), "(0", "+inf")
    for name in young:
        client.zadd(keys.staging(), {str(name): 0}, xx=True)
    return len(young)


def loads_left(client: Redis) -> list[str]:
    """Work that is still counted as being on a queue."""
    loads: dict[str, str] = client.hgetall(keys.loads())  # type: ignore[assignment]
    left = {queue: float(seconds) for queue, seconds in loads.items() if abs(float(seconds)) > 0.01}
    return [f"{keys.loads()} says {seconds} s for {queue}" for queue, seconds in left.items()]


def files_in(folder: Path, besides: Iterable[str] = ()) -> Iterator[str]:
    """Files, and folders with nothing in them, below this one; not those of these patterns."""
    allowed = list(besides)
    for path in sorted(folder.rglob("*")) if folder.exists() else ():
        name = str(path.relative_to(folder))
        is_end = not path.is_dir() or not any(path.iterdir())
        if is_end and not any(fnmatchcase(name, each) for each in allowed):
            yield name
