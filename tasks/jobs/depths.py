"""How much waits, and for how long: chunks by queue, items that no chunk has yet by pool. Read from the ledger in one
step; of queues and pools that hold very much, the first are looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from config import keys
from config.queues import PRIORITIES

POOLS = ("device", "policy", "api", "cpu")
#: Chunks looked at for each queue, and jobs for each pool and priority; more than a window ever has.
MOST_CHUNKS = 200
MOST_JOBS = 200

# ARGV  1 chunks of a queue looked at  2 jobs of a pool and priority looked at  3 number of queues  4.. queues, then
#       pool, key of its `ready` set, ...
# Returns the time; queue, chunks, items, dispatched_at of the oldest, running chunks, ...; and pool, items, jobs,
# created_at of the oldest job, ... once for each priority; an empty string where nothing waits.
_READ = """
local time = redis.call('TIME')
local queues, pools, jobs = {}, {}, {}
local last = 3 + ARGV[3]
for at = 4, last do
  local queue, items, oldest = ARGV[at], 0, ''
  for _, id in ipairs(redis.call('ZRANGE', key_dispatched(queue), 0, ARGV[1] - 1)) do
    local chunk = redis.call('HMGET', key_chunk(id), 'count', 'dispatched_at', 'job')
    items = items + tonumber(chunk[1] or 0)
    if chunk[2] and (oldest == '' or tonumber(chunk[2]) < tonumber(oldest)) then oldest = chunk[2] end
    if chunk[3] then jobs[#jobs + 1] = chunk[3] end
  end
  for _, value in ipairs({queue, redis.call('ZCARD', key_dispatched(queue)), items, oldest,
      redis.call('SCARD', key_running(queue))}) do queues[#queues + 1] = value end
end
for at = last + 1, #ARGV, 2 do
  local items, oldest = 0, ''
  for _, member in ipairs(redis.call('ZRANGE', ARGV[at + 1], 0, ARGV[2] - 1)) do
    local job, stage = string.match(member, '^(.-)|(.*)$')
    local about = redis.call('HMGET', key_job(job), 'pending:' .. stage, 'created_at')
    items = items + tonumber(about[1] or 0)
    if about[2] and (oldest == '' or tonumber(about[2]) < tonumber(oldest)) then oldest = about[2] end
    jobs[#jobs + 1] = job
  end
  for _, value in ipairs({ARGV[at], items, redis.call('ZCARD', ARGV[at + 1]), oldest}) do
    pools[#pools + 1] = value
  end
end
return {time[1] .. '.' .. string.format('%06d', time[2]), queues, pools, jobs}
"""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    queue: str
    chunks: int
    """Dispatched and not taken."""
    items: int
    """In these chunks."""
    oldest_s: float | None
    running: int
    """Chunks that a worker has taken."""


@dataclass(frozen=True, slots=True)
class PoolDepth:
    pool: str
    items: int
    """That wait for a chunk."""
    jobs: int
    """That they belong to."""
    oldest_s: float | None
    """Since the oldest of these jobs was made."""


@dataclass(frozen=True, slots=True)
class Depth:
    at: float
    queues: list[QueueDepth]
    pools: list[PoolDepth]
    jobs: list[str]
    """Jobs with items that wait, in a chunk or for one."""


class Depths:
    def __init__(self, state: Redis) -> None:
        self._script = state.register_script(keys.lua_functions() + _READ)

    def read(self, queues: Sequence[str]) -> Depth:
        ready = [text for pool in POOLS for priority in PRIORITIES for text in (pool, keys.ready(pool, priority))]
        stamp, flat, pools, jobs = self._script(keys=[], args=[MOST_CHUNKS, MOST_JOBS, len(queues), *queues, *ready])
        now = float(stamp)
        return Depth(
            now,
            [
                QueueDepth(name, int(chunks), int(items), _age(now, oldest), int(running))
                for name, chunks, items, oldest, running in _rows(flat, 5)
            ],
            _by_pool(now, pools),
            list(dict.fromkeys(jobs)),
        )


def _by_pool(now: float, flat: list[Any]) -> list[PoolDepth]:
    found: dict[str, PoolDepth] = {}
    for pool, items, jobs, oldest in _rows(flat, 4):
        known = found.get(pool, PoolDepth(pool, 0, 0, None))
        ages = [age for age in (known.oldest_s, _age(now, oldest)) if age is not None]
        found[pool] = PoolDepth(pool, known.items + int(items), known.jobs + int(jobs), max(ages, default=None))
    return list(found.values())


def _rows(flat: list[Any], width: int) -> list[list[Any]]:
    return [flat[at : at + width] for at in range(0, len(flat), width)]


def _age(now: float, since: str) -> float | None:
    return max(0.0, now - float(since)) if since else None
