-- Run a round of recovery: make parked items pending again when they are due, and end jobs past their deadline.
--
-- ARGV
--   1  seconds between two rounds, at least
--   2  seconds without a round that count as a stall of Redis or of all processes
--   3  seconds of grace after a stall
--   4  seconds after its last page when an upload counts as abandoned
-- Returns nothing when another process has just run a round; else: 1 while lapsed heartbeats are ignored, else 0;
-- seconds by which the clock was set back; storage folders of abandoned uploads.
-- Invariants:
--   * After a stall no process is declared dead before every process has had time for a heartbeat.
-- @allow-oom
-- @include clock
-- @include endings
-- @include jobs
-- @include pending
local MOST_PARKED, MOST_JOBS = 500, 100
local every_s, stall_s = tonumber(ARGV[1]), tonumber(ARGV[2])
local grace_s, abandoned_s = tonumber(ARGV[3]), tonumber(ARGV[4])
local set_back = clock.correct()
local now = clock.now()
local info = redis.call('HMGET', keys.tick(), 'last', 'grace_until')
local last, grace_until = tonumber(info[1] or 0), tonumber(info[2] or 0)
if last <= now and now - last < every_s then return {} end

local function due(key, until_, most)
  return redis.call('ZRANGEBYSCORE', key, '-inf', clock.stamp(until_), 'LIMIT', 0, most)
end

if now - last > stall_s or set_back > stall_s then grace_until = now + grace_s end
redis.call('HSET', keys.tick(), 'last', clock.stamp(now), 'grace_until', clock.stamp(grace_until))
for _, member in ipairs(due(keys.parked(), now, MOST_PARKED)) do
  local job_id, stage, entry = string.match(member, '^(.-)|(.-)|(.+)$')
  redis.call('ZREM', keys.parked(), member)
  if entry ~= constants.RESTED then
    pending.resume(job_id, stage, entry)
  else
    pending.make_ready_if_any(job_id, stage)
  end
end
for _, job_id in ipairs(due(keys.deadlines(), now, MOST_JOBS)) do
  local counts = redis.call('HMGET', keys.job(job_id), 'state', 'ok', 'total', 'max_failed_share')
  redis.call('ZREM', keys.deadlines(), job_id)
  if jobs.is_runnable(counts[1]) then
    local ok, total = tonumber(counts[2]), tonumber(counts[3])
    local is_failed = total - ok > tonumber(counts[4]) * total
    endings.end_job(job_id, is_failed and constants.FAILED or constants.DONE, 'deadline')
  end
end
return {now < grace_until and 1 or 0, clock.stamp(set_back), due(keys.staging(), now - abandoned_s, MOST_JOBS)}
