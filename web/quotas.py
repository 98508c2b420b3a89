"""What one token may ask for, counted in Redis and so for all web processes together.

Items are a purse that fills at `items_per_minute`: a submit is admitted while anything is in it, and then takes what it
took, if need be into debt. So a job of any size passes, and the mean rate holds all the same.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from redis import Redis

from config import keys
from web.refusal import Refused
from web.tokens import Token

#: Seconds an upload may take before it no longer counts as an active job.
UPLOAD_S = 3600
#: Seconds a job counts as active at most.
JOB_S = 7 * 86400

# ARGV  1 token  2 items per minute or 0  3 active jobs or 0  4 name of this submit  5 seconds it may take
# Returns "" when admitted, else "items <seconds to wait>" or "jobs".
_ADMIT = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local rate, most = tonumber(ARGV[2]), tonumber(ARGV[3])
if rate > 0 then
  local purse = redis.call('HMGET', key_token_items(ARGV[1]), 'left', 'at')
  local left = math.min(rate, tonumber(purse[1] or rate) + (now - tonumber(purse[2] or now)) * rate / 60)
  if left < 1 then return 'items ' .. string.format('%.3f', (1 - left) * 60 / rate) end
end
if most > 0 then
  local jobs = key_token_jobs(ARGV[1])
  redis.call('ZREMRANGEBYSCORE', jobs, '-inf', now)
  for _, job in ipairs(redis.call('ZRANGE', jobs, 0, -1)) do
    local state = redis.call('HGET', key_job(job), 'state')
    if string.sub(job, 1, 1) ~= '~' and (not state or state == 'done' or state == 'failed' or state == 'cancelled') then
      redis.call('ZREM', jobs, job)
    end
  end
  if redis.call('ZCARD', jobs) >= most then return 'jobs' end
  redis.call('ZADD', jobs, now + ARGV[5], ARGV[4])
  redis.call('EXPIRE', jobs, 7 * 86400)
end
return ''
"""

# ARGV  1 token  2 items per minute or 0  3 active jobs or 0  4 name of the submit  5 job, or '' when it was refused
#       6 items it took  7 seconds the job counts at most
_SETTLE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local rate = tonumber(ARGV[2])
if rate > 0 and tonumber(ARGV[6]) > 0 then
  local key = key_token_items(ARGV[1])
  local purse = redis.call('HMGET', key, 'left', 'at')
  local left = math.min(rate, tonumber(purse[1] or rate) + (now - tonumber(purse[2] or now)) * rate / 60) - ARGV[6]
  redis.call('HSET', key, 'left', string.format('%.6f', left), 'at', string.format('%.6f', now))
  redis.call('EXPIRE', key, math.ceil((rate - left) * 60 / rate) + 1)
end
if tonumber(ARGV[3]) > 0 then
  redis.call('ZREM', key_token_jobs(ARGV[1]), ARGV[4])
  if ARGV[5] ~= '' then redis.call('ZADD', key_token_jobs(ARGV[1]), now + ARGV[7], ARGV[5]) end
end
"""


class Admission:
    """One submit on its way; its door says what became of it."""

    job = ""
    items = 0


class Quotas:
    def __init__(self, state: Redis) -> None:
        self._admit = state.register_script(keys.lua_functions() + _ADMIT)
        self._settle = state.register_script(keys.lua_functions() + _SETTLE)

    @contextmanager
    def admitted(self, token: Token | None) -> Iterator[Admission]:
        """Raises Refused (429) when the token has used up what it may."""
        admission = Admission()
        if token is None or not (token.items_per_minute or token.active_jobs):
            yield admission
            return
        quotas: list[str | int] = [token.name, token.items_per_minute or 0, token.active_jobs or 0]
        submit = f"~{uuid4().hex}"
        _refuse(token, self._admit(keys=[], args=[*quotas, submit, UPLOAD_S]))
        try:
            yield admission
        finally:
            self._settle(keys=[], args=[*quotas, submit, admission.job, admission.items, JOB_S])


def _refuse(token: Token, reason: str) -> None:
    if reason == "jobs":
        raise Refused(
            429, "quota", "Quota used up", f"Token {token.name} has {token.active_jobs} active jobs, all that it may: "
            "wait for one to end, or cancel one.", headers={"Retry-After": "5"},
        )  # fmt: skip
    if reason:
        wait_s = math.ceil(float(reason.split()[1]))
        raise Refused(
            429, "quota", "Quota used up", f"Token {token.name} may submit {token.items_per_minute} items a minute: "
            f"try again in {wait_s} s.", headers={"Retry-After": str(wait_s)},
        )  # fmt: skip
