-- Run items again that failed, or that a job which ended early never came to, from their first stage on. In pages: while it is
-- `reopening` a job neither runs nor ends; the last call lets it go. All may be repeated, and a retry that was cut off resumed.
-- ARGV  1 job  2 1: the last call, which follows the pages  3.. pending entries; or, in a page, index, status, error type and
--       `cached` of each item, with all members of the groups they touch. The status is empty for an item without an outcome.
-- Returns the number of items, or -1 when the job is not in a state that allows it.
-- Keeps: an item is taken out of the counters before it is pending again; nothing of the last epoch counts in the new one.
local job, last, again = ARGV[1], ARGV[2] == '1', {}
local state = redis.call('HGET', key_job(job), 'state')
if state ~= 'reopening' and (last or (state ~= 'done' and state ~= 'failed')) then return -1 end
if state ~= 'reopening' then
  redis.call('HSET', key_job(job), 'state', 'reopening', 'reason', '', 'ended_at', '')
  redis.call('HINCRBY', key_job(job), 'epoch', 1)
  -- Should whoever retries it die now, it is removed in its time.
  redis.call('ZADD', key_expiry(), stamp(now() + tonumber(redis.call('HGET', key_job(job), 'keep_s'))), job)
  for _, id in ipairs(redis.call('SMEMBERS', key_job_chunks(job))) do
    release_claims(id)
    drop_chunk(id)
  end
end
local stages = stages_of(job)
if last then
  redis.call('HSET', key_job(job), 'state', 'running')
  redis.call('ZREM', key_expiry(), job)
  tell(job, 'retried')
  note(job, 'retried')
  if facts(job).part_items > 0 then
    local inflight = -tonumber(redis.call('HGET', key_job(job), 'marked') or 0)
    for at = 3, #ARGV do inflight = inflight + count(ARGV[at]) end
    for part = 0, part_of(job, facts(job).total - 1) do
      inflight = inflight + redis.call('HLEN', key_job_outcomes(job, part))
      -- Complete when the job ended early, and not moved before that.
      if tonumber(redis.call('HGET', key_job_settled(job), part) or 0) == part_size(job, part) and not passed(job, PARTS, part) then
        push_pending(job, PARTS, tostring(part))
      end
    end
    redis.call('HSET', key_job(job), 'inflight', inflight, 'marked', 0)
  end
  for at = 3, #ARGV do push_pending(job, stages[1].name, ARGV[at]) end
  check_end(job)
  return 0
end
local part_items = facts(job).part_items
for at = 3, #ARGV, 4 do
  local index, status = ARGV[at], ARGV[at + 1]
  local here = redis.call('HGET', key_job_outcomes(job, part_of(job, index)), index)
  if status ~= '' and here ~= '' and (here or part_items > 0) then
    redis.call('HINCRBY', key_job(job), status == 'ok' and 'ok' or 'failed', -1)
    if status ~= 'ok' then redis.call('HINCRBY', key_job_reasons(job), ARGV[at + 2], -1) end
    if ARGV[at + 3] == '1' then redis.call('HINCRBY', key_job(job), 'cached', -1) end
    if part_items > 0 then
      local part = part_of(job, index)
      redis.call('HSET', key_job_outcomes(job, part_of(job, index)), index, '') -- hides what the part's file has
      redis.call('HINCRBY', key_job(job), 'marked', 1)
      redis.call('HINCRBY', key_job_settled(job), part, -1)
      if pass(job, PARTS, part, 0) == 1 then
        local file = redis.call('HGET', key_job_parts(job), part)
        if file then redis.call('HSET', key_job_parts(job), part, '~' .. (string.gsub(file, '^~', ''))) end
        redis.call('HINCRBY', key_job(job), 'merged', -1)
      end
    else
      redis.call('HDEL', key_job_outcomes(job, part_of(job, index)), index)
    end
  end
  for _, key in ipairs({key_job_carry(job), key_job_deaths(job), key_job_attempts(job)}) do redis.call('HDEL', key, index) end
  for _, stage in ipairs(stages) do
    if stage.name ~= PARTS then pass(job, stage.name, index, 0) end
    if stage.grouped then
      local group = group_of(job, index)
      redis.call('HSET', key_job_awaited(job), group, count(redis.call('HGET', key_job_members(job), group)))
    end
  end
  again[#again + 1] = tonumber(index)
end
return #again
