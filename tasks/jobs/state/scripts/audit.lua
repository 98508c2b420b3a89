-- Audit active jobs: a job that stands still although it is not complete has items in no place, or a counter that keeps
-- its pending items back. Both are repaired, so that an unknown fault delays a job and does not hang it forever.
--
-- ARGV
--   1  job id to audit now, completely; or '' for the jobs whose next audit is due
--   2  seconds until a job's next audit
--   3  seconds without a call after which a retry counts as interrupted
--   4  maximum number of jobs
-- Returns two lists: job id and number of repaired items of each repaired job; ids of jobs whose retry was interrupted.
-- Invariants:
--   * An item is put back only if it is in no place. An audit of a sound job changes nothing.
-- @allow-oom
-- @include chunks
-- @include clock
-- @include endings
-- @include events
-- @include holes
-- @include jobs
-- @include pending
-- @include totals
local wanted, again_s, reopening_s, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local now = clock.now()
local repaired, interrupted = {}, {}

-- Return whether no chunk of the job runs or waits, and, in a job without pending items, nothing is parked.
local function stands_still(job_id) return redis.call('EXISTS', keys.job_chunks(job_id)) == 0 end

-- A job without chunks uses no in-flight slots. Its pending items are ready, unless it is paused or suspended.
local function make_ready(job_id)
  for _, stage in ipairs(jobs.stages(job_id)) do
    if redis.call('EXISTS', keys.job_pending(job_id, stage.name)) == 1 then
      redis.call('HSET', keys.job(job_id), 'out:' .. stage.name, 0)
      pending.make_ready(job_id, stage.name)
    end
  end
end

local function has_pending(job_id)
  for _, stage in ipairs(jobs.stages(job_id)) do
    if redis.call('EXISTS', keys.job_pending(job_id, stage.name)) == 1 then return true end
  end
  return false
end

local function audit(job_id)
  local state = jobs.state(job_id)
  if state == constants.REOPENING then
    local touched_at = tonumber(redis.call('HGET', keys.job(job_id), 'reopened_at') or 0)
    if now - touched_at >= reopening_s then interrupted[#interrupted + 1] = job_id end
    return
  end
  if not jobs.is_runnable(state) then
    redis.call('ZREM', keys.active(), job_id)
    return
  end
  local is_still = stands_still(job_id)
  if is_still then make_ready(job_id) end
  if wanted ~= '' or (is_still and not has_pending(job_id)) then
    local number = holes.fill(job_id)
    if number > 0 then
      repaired[#repaired + 1], repaired[#repaired + 2] = job_id, number
      totals.count(number, 'repaired|' .. jobs.facts(job_id).kind)
      events.log(job_id, 'repaired', {items = number})
    else
      endings.check(job_id)
    end
  end
end

local due = {wanted}
if wanted == '' then due = redis.call('ZRANGEBYSCORE', keys.active(), '-inf', clock.stamp(now), 'LIMIT', 0, most) end
for _, job_id in ipairs(due) do
  redis.call('ZADD', keys.active(), 'XX', clock.stamp(now + again_s), job_id)
  audit(job_id)
end
return {repaired, interrupted}
