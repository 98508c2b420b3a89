-- Run items again that failed, or that a job which ended early never came to: a page of them, from their first stage on.
-- ARGV  1 job  2 1: the first page, which opens a new epoch  3.. indices, with all members of the groups they touch
-- Returns the number of items reopened, or -1 when the job is not in a state that allows it.
-- Keeps: an item is taken out of the counters before it is pending again, so the job cannot end too early.
local job, again = ARGV[1], {}
local state = redis.call('HGET', key_job(job), 'state')
if ARGV[2] == '1' then
  if state ~= 'done' and state ~= 'failed' then return -1 end
  redis.call('HSET', key_job(job), 'state', 'running', 'reason', '', 'ended_at', '')
  redis.call('HINCRBY', key_job(job), 'epoch', 1)
  redis.call('ZREM', key_expiry(), job)
  tell(job, 'retried')
elseif not is_active(state) then
  return -1
end
local stages = stages_of(job)
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
push_pending(job, stages[1].name, compress(again))
return #again
