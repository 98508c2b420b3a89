"""What waits, and for how long: chunks on each queue, and items of each pool that are in no chunk yet. Read from the
ledger in one step; of queues and pools that hold very much, the first are looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from config import keys
from config.queues import PRIORITIES
from tasks.jobs.dispatch import POLICY, POOLS

#: Chunks of each queue whose items are counted: more than usually wait on one.
MOST_CHUNKS = 200
#: Jobs looked at for each pool and priority, those that were given least first; those beyond count as one item each.
MOST_JOBS = 200

# ARGV  1 chunks of a queue looked at  2 jobs of a pool and priority looked at  3 number of queues; 0: all that ever had
#       work  4.. queues, then pool, priority, ...
# Returns the time; the number of jobs that have not ended; queue, chunks that wait, items in them, dispatched_at of the
# oldest, chunks that run, mode, ...; pool, priority, jobs, items, created_at of the oldest job, when the worst off was
# last given something, ...; and the jobs seen. An empty string where nothing waits.
_READ = """
local most_chunks, most_jobs, number = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local queues, pools, jobs = {}, {}, {}
local function put(rows, ...) for _, value in ipairs({...}) do rows[#rows + 1] = value end end
local function earlier(one, other)
  if not other then return one end
  return (one == '' or tonumber(other) < tonumber(one)) and other or one
end
for _, queue in ipairs(number == 0 and redis.call('SMEMBERS', key_queues()) or {unpack(ARGV, 4, 3 + number)}) do
  local items, oldest = 0, ''
  for _, id in ipairs(redis.call('ZRANGE', key_dispatched(queue), 0, most_chunks - 1)) do
    local chunk = redis.call('HMGET', key_chunk(id), 'count', 'job')
    items = items + tonumber(chunk[1] or 0)
    put(jobs, chunk[2] or nil)
  end
  for rank = 0, 2 do -- the first of each priority is its oldest
    local above, below = string.format('%.0f', rank * 1e12), string.format('(%.0f', (rank + 1) * 1e12)
    local id = redis.call('ZRANGEBYSCORE', key_dispatched(queue), above, below, 'LIMIT', 0, 1)[1]
    oldest = earlier(oldest, id and redis.call('HGET', key_chunk(id), 'dispatched_at'))
  end
  put(queues, queue, redis.call('ZCARD', key_dispatched(queue)), items, oldest, redis.call('SCARD', key_running(queue)),
    redis.call('GET', key_queue_mode(queue)) or 'open')
end
for at = 4 + number, #ARGV, 2 do
  local ready, items, oldest, unserved = key_ready(ARGV[at], ARGV[at + 1]), 0, '', ''
  local all = redis.call('ZCARD', ready)
  for _, member in ipairs(redis.call('ZRANGE', ready, 0, most_jobs - 1)) do
    local job, stage = string.match(member, '^(.-)|(.*)$')
    local about = redis.call('HMGET', key_job(job), 'pending:' .. stage, 'created_at', 'served_at:' .. stage)
    items, oldest = items + tonumber(about[1] or 0), earlier(oldest, about[2])
    unserved = earlier(unserved, about[3] or about[2])
    put(jobs, job)
  end
  put(pools, ARGV[at], ARGV[at + 1], all, items + math.max(0, all - most_jobs), oldest, unserved)
end
local active = redis.call('ZCARD', key_jobs()) - redis.call('ZCARD', key_expiry())
return {time[1] .. '.' .. string.format('%06d', time[2]), active, queues, pools, jobs}
"""


@dataclass(frozen=True, slots=True)
class QueueWait:
    queue: str
    chunks: int
    """That no worker has taken."""
    items: int
    """In these chunks."""
    oldest_s: float | None
    """How long the oldest of them has waited; None when none does."""
    running: int
    """Chunks that a worker has taken."""
    mode: str


@dataclass(frozen=True, slots=True)
class PoolWait:
    pool: str
    priority: str
    jobs: int
    items: int
    """That wait for a chunk."""
    oldest_s: float | None
    """Since the oldest of these jobs was made."""
    unserved_s: float | None
    """For how long the job that is worst off was given nothing, though items of it wait."""


@dataclass(frozen=True, slots=True)
class Waits:
    at: float
    active: int
    """Jobs that have not ended."""
    queues: list[QueueWait]
    pools: list[PoolWait]
    """Once for each priority."""
    jobs: list[str]
    """Jobs with items that wait, in a chunk or for one."""


class Waiting:
    def __init__(self, state: Redis) -> None:
        self._script = state.register_script(keys.lua_functions() + _READ)

    def read(self, queues: Sequence[str] = ()) -> Waits:
        """Of these queues, or of all that ever had work; and of all pools."""
        pairs = [part for pool in (*POOLS, POLICY) for priority in PRIORITIES for part in (pool, priority)]
        stamp, active, flat, pools, jobs = self._script(
            keys=[], args=[MOST_CHUNKS, MOST_JOBS, len(queues), *queues, *pairs]
        )
        now = float(stamp)
        return Waits(
            now,
            int(active),
            [
                QueueWait(name, int(chunks), int(items), _age(now, oldest), int(running), mode)
                for name, chunks, items, oldest, running, mode in sorted(_rows(flat, 6))
            ],
            [
                PoolWait(pool, priority, int(jobs), int(items), _age(now, oldest), _age(now, unserved))
                for pool, priority, jobs, items, oldest, unserved in _rows(pools, 6)
            ],
            list(dict.fromkeys(jobs)),
        )


def _rows(flat: list[Any], width: int) -> list[list[Any]]:
    return [flat[at : at + width] for at in range(0, len(flat), width)]


def _age(now: float, since: str) -> float | None:
    return max(0.0, now - float(since)) if since else None
