"""What runs right now, queue by queue: the chunks that workers have taken, and of which jobs they are."""

from collections.abc import Sequence
from dataclasses import dataclass

from redis import Redis

from config import keys

#: Chunks told of for one queue, unless more are asked for. A device has a few; on `api` there may be hundreds.
MOST_TOLD = 64

# ARGV  1 chunks of a queue at most  2.. queues; none: all that may hold chunks
# Returns queue, chunk, worker, job, kind, priority, stage, items, taken_at, ...
_READ = """
local rows, queues = {}, {unpack(ARGV, 2)}
if #queues == 0 then queues = redis.call('SMEMBERS', key_queues()) end
for _, queue in ipairs(queues) do
  for number, id in ipairs(redis.call('SMEMBERS', key_running(queue))) do
    if number > tonumber(ARGV[1]) then break end
    local chunk = redis.call('HMGET', key_chunk(id), 'worker', 'job', 'stage', 'count', 'taken_at')
    local job = chunk[2] and redis.call('HMGET', key_job(chunk[2]), 'kind', 'priority')
    if job and job[1] then
      for _, value in ipairs({queue, id, chunk[1], chunk[2], job[1], job[2], chunk[3], chunk[4], chunk[5]}) do
        rows[#rows + 1] = value
      end
    end
  end
end
return rows
"""


@dataclass(frozen=True, slots=True)
class Doing:
    """One chunk that a worker runs."""

    queue: str
    chunk: str
    worker: str
    job: str
    kind: str
    priority: str
    stage: str
    items: int
    since: float
    """When it was taken, by the state Redis's clock."""


class Running:
    def __init__(self, state: Redis) -> None:
        self._script = state.register_script(keys.lua_functions() + _READ)

    def read(self, queues: Sequence[str] = (), most: int = MOST_TOLD) -> list[Doing]:
        """By queue, the oldest first; of these queues, or of all."""
        flat = self._script(keys=[], args=[most, *queues])
        rows = (flat[at : at + 9] for at in range(0, len(flat), 9))
        found = [
            Doing(queue, chunk, worker, job, kind, priority, stage, int(items), float(since))
            for queue, chunk, worker, job, kind, priority, stage, items, since in rows
        ]
        return sorted(found, key=lambda each: (each.queue, each.since))
