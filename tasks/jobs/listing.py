"""Jobs, newest first, page by page. Filters look at a bounded number of jobs; the cursor says where to go on."""

import re
from dataclasses import dataclass
from typing import cast

from redis import Redis

from config import keys
from tasks.errors import InvalidRequest
from tasks.jobs.model import Job
from tasks.jobs.store import Store

#: Jobs a request looks at; with a rare filter its page is then short, or empty, and `next` goes on from there.
MOST_LOOKED_AT = 2000

_CURSOR = re.compile(r"([0-9]{1,12}\.[0-9]{1,9})_([0-9a-f]{1,64})")

# ARGV  1 time to start from  2 last job seen of that time, or ''  3 kind, or ''  4 state, or ''  5 jobs wanted
#       6 jobs looked at, at most
# Returns time and id of the last job looked at, empty where that was the last of all; then the jobs that fit.
# In Redis, as it is one step: read page by page from outside, a rare filter took twenty times as long.
_FIND = """
local found, looked_at, at, last = {}, 0, '', ''
local before, after, page = ARGV[1], ARGV[2], 200
while true do
  local rows = redis.call('ZREVRANGEBYSCORE', key_jobs(), before, '-inf', 'WITHSCORES', 'LIMIT', 0, page)
  local fresh = 0
  for place = 1, #rows, 2 do
    local job, score = rows[place], rows[place + 1]
    -- Jobs of one instant are in reverse order of their ids: read from the instant itself on, and skip.
    if not (after ~= '' and tonumber(score) == tonumber(before) and job >= after) then
      if #found == tonumber(ARGV[5]) or looked_at == tonumber(ARGV[6]) then return {at, last, unpack(found)} end
      at, last, looked_at, fresh = score, job, looked_at + 1, fresh + 1
      local about = redis.call('HMGET', key_job(job), 'kind', 'state')
      if about[2] and (ARGV[3] == '' or ARGV[3] == about[1]) and (ARGV[4] == '' or ARGV[4] == about[2]) then
        found[#found + 1] = job
      end
    end
  end
  if fresh == 0 or #rows < 2 * page then return {'', '', unpack(found)} end
  before, after = at, last
end
"""


@dataclass(frozen=True, slots=True)
class Listing:
    jobs: list[Job]
    next: str | None


class Jobs:
    def __init__(self, state: Redis, store: Store) -> None:
        self._find = state.register_script(keys.lua_functions() + _FIND)
        self._store = store

    def page(self, kind: str | None, state: str | None, limit: int, cursor: str | None) -> Listing:
        """Raises InvalidRequest when the cursor is none of ours."""
        before, after = _parsed(cursor)
        args = (before, after, kind or "", state or "", limit, MOST_LOOKED_AT)
        at, last, *found = cast(list[str], self._find(keys=[], args=args))
        return Listing(self._store.present(found), f"{float(at)!r}_{last}" if at else None)


def _parsed(cursor: str | None) -> tuple[str, str]:
    """The time to start from, and the last job seen of that time."""
    if cursor is None:
        return "inf", ""
    if not (match := _CURSOR.fullmatch(cursor)):
        raise InvalidRequest("cursor: give the `next` of an earlier page as it was.", field="cursor")
    return match[1], match[2]
