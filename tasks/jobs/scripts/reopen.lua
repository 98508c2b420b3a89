-- Run items again that failed, or that a job which ended early never came to, from their first stage on. In pages: while it is
-- `reopening` a job neither runs nor ends; the last call lets it go. All may be repeated, and a retry that was cut off resumed.
-- ARGV  1 job  2 1: the last call, which follows the pages  3.. indices, with all members of the groups they touch
-- Returns the number of items, or -1 when the job is not in a state that allows it.
-- Keeps: an item is taken out of the counters before it is pending again; nothing of the last epoch counts in the new one.
local job, last, again = ARGV[1], ARGV[2] == '1', {}
local state = redis.call('HGET', key_job(job), 'state')
if state ~= 'reopening' and (last or (state ~= 'done' and state ~= 'failed')) then return -1 end
if state ~= 'reopening' then
  redis.call('HSET', key_job(job), 'state', 'reopening', 'reason', '', 'ended_at', '')
  redis.call('HINCRBY', key_job(job), 'epoch', 1)
  redis.call('ZREM', key_expiry(), job)
  for _, id in ipairs(redis.call('SMEMBERS', key_job_chunks(job))) do
    release_claims(id)
    drop_chunk(id)
  end
end
local stages = stages_of(job)
if last then
  redis.call('HSET', key_job(job), 'state', 'running')
  tell(job, 'retried')
  for at = 3, #ARGV do push_pending(job, stages[1].name, ARGV[at]) end
  check_end(job)
  return 0
end
for at = 3, #ARGV do
  local index = ARGV[at]
  local outcome = redis.call('HGET', key_job_outcomes(job), index)
  if outcome then
    local decoded = cjson.decode(outcome)
    redis.call('HDEL', key_job_outcomes(job), index)
    redis.call('HINCRBY', key_job(job), decoded.status == 'ok' and 'ok' or 'failed', -1)
    if decoded.status ~= 'ok' then redis.call('HINCRBY', key_job_reasons(job), decoded.error.type, -1) end
    if decoded.cached then redis.call('HINCRBY', key_job(job), 'cached', -1) end
  end
  for _, key in ipairs({key_job_carry(job), key_job_deaths(job), key_job_attempts(job)}) do redis.call('HDEL', key, index) end
  for _, stage in ipairs(stages) do
    redis.call('SETBIT', key_job_passed(job, stage.name), index, 0)
    if stage.grouped then
      local group = redis.call('HGET', key_job_groups(job), index)
      redis.call('HSET', key_job_awaited(job), group, count(redis.call('HGET', key_job_members(job), group)))
    end
  end
  again[#again + 1] = tonumber(index)
end
return #again
