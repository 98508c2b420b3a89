-- Reopen items of an ended job, to run them again from their first stage on: items that failed, and items that have no
-- outcome because the job ended early. Called once per page of items, then once with 1 in ARGV[2]. Every call is
-- idempotent, and an interrupted retry may be resumed.
--
-- ARGV
--   1   job id
--   2   1 in the last call, else 0
--   3.. in the last call: entries for the pending list; in earlier calls: index, status, error type and cached (1 or 0)
--       of each item, including every member of the items' groups. The status is '' for an item without an outcome.
-- Returns: the number of items, or -1 when the job's state does not allow it.
-- Invariants:
--   * A job is `reopening` from the first call to the last: it neither runs nor ends, see tasks/jobs/states.py.
--   * An item is subtracted from the counters before it is pending again; no result of the last epoch counts in the new
--     epoch.
-- @include away
-- @include chunks
-- @include claims
-- @include clock
-- @include endings
-- @include events
-- @include groups
-- @include jobs
-- @include parts
-- @include passed
-- @include pending
-- @include ranges
local job_id, is_last = ARGV[1], ARGV[2] == '1'
local job, state = keys.job(job_id), jobs.state(job_id)
if not constants.RETRIABLE[state or ''] or (is_last and state ~= constants.REOPENING) then return -1 end

local function begin_epoch()
  redis.call('HSET', job, 'state', constants.REOPENING, 'reason', '', 'ended_at', '')
  redis.call('HINCRBY', job, 'epoch', 1)
  -- If the retry is abandoned, the job still expires.
  local keep_s = tonumber(redis.call('HGET', job, 'keep_s'))
  redis.call('ZADD', keys.expiry(), clock.stamp(clock.now() + keep_s), job_id)
  for _, chunk_id in ipairs(redis.call('SMEMBERS', keys.job_chunks(job_id))) do
    claims.release_all(chunk_id)
    chunks.drop(chunk_id)
  end
end

if state ~= constants.REOPENING then begin_epoch() end
redis.call('HSET', job, 'reopened_at', clock.stamp(clock.now()))
redis.call('ZADD', keys.active(), clock.stamp(clock.now()), job_id)
local stages, facts = jobs.stages(job_id), jobs.facts(job_id)

-- Set the number of a stored job's items that are in flight, and make complete parts pending that were not moved to
-- files, because the job ended early.
local function count_inflight()
  local inflight = -tonumber(redis.call('HGET', job, 'marked') or 0)
  for at = 3, #ARGV do inflight = inflight + ranges.count(ARGV[at]) end
  for part = 0, jobs.part_of(job_id, facts.total - 1) do
    inflight = inflight + redis.call('HLEN', keys.job_outcomes(job_id, part))
    if not passed.is_set(job_id, constants.PARTS, part) then
      parts.push_if_complete(job_id, part, tonumber(redis.call('HGET', keys.job_settled(job_id), part) or 0))
    end
  end
  redis.call('HSET', job, 'inflight', inflight, 'marked', 0)
end

if is_last then
  redis.call('HSET', job, 'state', constants.RUNNING)
  redis.call('ZREM', keys.expiry(), job_id)
  redis.call('PERSIST', keys.job_events(job_id))
  events.publish(job_id, 'retried')
  events.log(job_id, 'retried')
  if facts.part_items > 0 then count_inflight() end
  for at = 3, #ARGV do pending.push(job_id, stages[1].name, ARGV[at]) end
  endings.check(job_id)
  return 0
end

-- Hide an item's outcome in the file of its part. The part is moved to a new file once the item has a new outcome.
local function hide_in_part(index)
  local part = jobs.part_of(job_id, index)
  redis.call('HSET', keys.job_outcomes(job_id, part), index, '')
  redis.call('HINCRBY', job, 'marked', 1)
  redis.call('HINCRBY', keys.job_settled(job_id), part, -1)
  if passed.set(job_id, constants.PARTS, part, 0) then
    local file = redis.call('HGET', keys.job_parts(job_id), part)
    if file then redis.call('HSET', keys.job_parts(job_id), part, '~' .. (string.gsub(file, '^~', ''))) end
    redis.call('HINCRBY', job, 'merged', -1)
  end
end

-- Subtract an item's outcome from the counters.
local function uncount(index, status, error_type, is_cached)
  redis.call('HINCRBY', job, status == 'ok' and 'ok' or 'failed', -1)
  if status ~= 'ok' then redis.call('HINCRBY', keys.job_reasons(job_id), error_type, -1) end
  if is_cached then redis.call('HINCRBY', job, 'cached', -1) end
  if facts.part_items > 0 then
    hide_in_part(index)
  else
    redis.call('HDEL', keys.job_outcomes(job_id, 0), index)
  end
end

local number = 0
for at = 3, #ARGV, 4 do
  local index, status = ARGV[at], ARGV[at + 1]
  local outcome = redis.call('HGET', keys.job_outcomes(job_id, jobs.part_of(job_id, index)), index)
  local is_counted = outcome ~= '' and (outcome or facts.part_items > 0)
  if status ~= '' and is_counted then uncount(index, status, ARGV[at + 2], ARGV[at + 3] == '1') end
  for _, key in ipairs({keys.job_carry(job_id), keys.job_deaths(job_id), keys.job_attempts(job_id)}) do
    redis.call('HDEL', key, index)
  end
  for _, stage in ipairs(stages) do
    if stage.name ~= constants.PARTS then passed.set(job_id, stage.name, index, 0) end
    away.remove(job_id, stage.name, index)
    if stage.grouped then
      local group = groups.of(job_id, index)
      redis.call('HSET', keys.job_awaited(job_id), group, ranges.count(groups.members(job_id, group)))
    end
  end
  number = number + 1
end
return number
