"""What waits, and for how long: chunks on each queue, and items of each pool that are in no chunk yet."""

from dataclasses import dataclass

from redis import Redis

from config import keys
from config.queues import PRIORITIES

#: Pools that items wait for; work for devices with a policy server is counted by itself.
POOLS = ("device", "policy", "api", "cpu")
#: Jobs looked at for each pool and priority; those beyond count as one item each.
MOST_JOBS = 2000

# ARGV  1 jobs looked at, at most  2.. pool, priority, ...
# Returns the number of queues; of each its name, chunks that wait, chunks that run, seconds the oldest has waited and
# mode; then pool, priority, jobs, items, seconds the longest was given nothing.
_READ = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local names = redis.call('SMEMBERS', key_queues())
local answer = {tostring(#names)}
local function put(...) for _, value in ipairs({...}) do answer[#answer + 1] = tostring(value) end end
for _, queue in ipairs(names) do
  local oldest = now
  for rank = 0, 2 do
    local above, below = string.format('%.0f', rank * 1e12), string.format('(%.0f', (rank + 1) * 1e12)
    local first = redis.call('ZRANGEBYSCORE', key_dispatched(queue), above, below, 'LIMIT', 0, 1)[1]
    local at = first and redis.call('HGET', key_chunk(first), 'dispatched_at')
    if at then oldest = math.min(oldest, tonumber(at)) end
  end
  put(queue, redis.call('ZCARD', key_dispatched(queue)), redis.call('SCARD', key_running(queue)), now - oldest,
    redis.call('GET', key_queue_mode(queue)) or 'open')
end
for at = 2, #ARGV, 2 do
  local pool, priority, items, oldest = ARGV[at], ARGV[at + 1], 0, now
  local ready = key_ready(pool, priority)
  local jobs = redis.call('ZCARD', ready)
  for _, member in ipairs(redis.call('ZRANGE', ready, 0, ARGV[1] - 1)) do
    local job, stage = string.match(member, '^(.-)|(.*)$')
    local info = redis.call('HMGET', key_job(job), 'pending:' .. stage, 'served_at', 'created_at')
    items = items + tonumber(info[1] or 0)
    oldest = math.min(oldest, tonumber(info[2] or info[3] or now))
  end
  put(pool, priority, jobs, items + math.max(0, jobs - ARGV[1]), now - oldest)
end
return answer
"""


@dataclass(frozen=True, slots=True)
class QueueWait:
    queue: str
    waiting: int
    """Chunks that no worker has taken."""
    running: int
    oldest_s: float
    """How long the oldest of those that wait has done so; 0 when none does."""
    mode: str


@dataclass(frozen=True, slots=True)
class PoolWait:
    pool: str
    priority: str
    jobs: int
    items: int
    longest_s: float
    """For how long the job that is worst off was given nothing, though items of it wait."""


class Waiting:
    def __init__(self, state: Redis) -> None:
        self._script = state.register_script(keys.lua_functions() + _READ)

    def read(self) -> tuple[list[QueueWait], list[PoolWait]]:
        """Of all queues that ever had work, and of all pools."""
        pairs = [part for pool in POOLS for priority in PRIORITIES for part in (pool, priority)]
        number, *flat = self._script(keys=[], args=[MOST_JOBS, *pairs])
        rows = [flat[at : at + 5] for at in range(0, len(flat), 5)]
        queues = [
            QueueWait(queue, int(waiting), int(running), float(oldest), mode)
            for queue, waiting, running, oldest, mode in rows[: int(number)]
        ]
        pools = [
            PoolWait(pool, priority, int(jobs), int(float(items)), float(longest))
            for pool, priority, jobs, items, longest in rows[int(number) :]
        ]
        return sorted(queues, key=lambda each: each.queue), pools
