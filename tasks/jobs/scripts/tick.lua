-- The clockwork: parked items that are due, jobs past their deadline, jobs to be removed; and whether lapsed heartbeats count.
-- ARGV  1 who  2 least s between two ticks  3 s without a tick that mean Redis or all of us were away  4 grace s after that
--       5 s after its last page when an upload counts as given up
-- Returns -1 when another ticked just now; else 1 while heartbeats are forgiven and 0 when not, then ids of jobs to remove, and
-- names of given-up uploads with `~` before them.
-- Keeps: after a stall of Redis nobody is declared dead before everybody had time to beat again.
if not redis.call('SET', key_tick_lock(), ARGV[1], 'NX', 'PX', math.floor(tonumber(ARGV[2]) * 1000)) then return {-1} end
local at = now()
local info = redis.call('HMGET', key_tick(), 'last', 'grace_until')
local grace_until = tonumber(info[2] or 0)
if at - tonumber(info[1] or 0) > tonumber(ARGV[3]) then grace_until = at + tonumber(ARGV[4]) end
redis.call('HSET', key_tick(), 'last', stamp(at), 'grace_until', stamp(grace_until))
for _, member in ipairs(redis.call('ZRANGEBYSCORE', key_parked(), '-inf', stamp(at), 'LIMIT', 0, 500)) do
  local job, stage, entry = string.match(member, '^(.-)|(.-)|(.+)$')
  redis.call('ZREM', key_parked(), member)
  if entry ~= RESTED then
    come_back(job, stage, entry)
  elseif redis.call('EXISTS', key_job_pending(job, stage)) == 1 then
    make_ready(job, stage)
  end
end
for _, job in ipairs(redis.call('ZRANGEBYSCORE', key_deadlines(), '-inf', stamp(at), 'LIMIT', 0, 100)) do
  local counts = redis.call('HMGET', key_job(job), 'state', 'ok', 'total', 'max_failed_share')
  redis.call('ZREM', key_deadlines(), job)
  if is_active(counts[1]) then
    local missed = tonumber(counts[3]) - tonumber(counts[2])
    end_job(job, missed > tonumber(counts[4]) * tonumber(counts[3]) and 'failed' or 'done', 'deadline')
  end
end
local answer = {at < grace_until and 1 or 0}
for _, job in ipairs(redis.call('ZRANGEBYSCORE', key_expiry(), '-inf', stamp(at), 'LIMIT', 0, 100)) do
  answer[#answer + 1] = job
end
for _, folder in ipairs(redis.call('ZRANGEBYSCORE', key_staging(), '-inf', stamp(at - tonumber(ARGV[5])), 'LIMIT', 0, 100)) do
  answer[#answer + 1] = '~' .. folder
end
return answer
