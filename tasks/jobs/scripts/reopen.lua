-- Run failed items again: a page of them. What is not failed any more is left alone, so a page may be repeated.
-- ARGV  1 job  2 1: the first page, which opens a new epoch  3.. indices of failed items, or of members of their groups
-- Returns the number of items reopened, or -1 when the job is not in a state that allows it.
-- Keeps: an item is taken out of the counters before it is pending again, so the job cannot end too early.
local job, again = ARGV[1], {}
local state = redis.call('HGET', key_job(job), 'state')
if state ~= 'done' and state ~= 'failed' and not is_active(state) then return -1 end
if ARGV[2] == '1' then
  redis.call('HSET', key_job(job), 'state', 'running', 'reason', '', 'ended_at', '')
  redis.call('HINCRBY', key_job(job), 'epoch', 1)
  redis.call('ZREM', key_expiry(), job)
  tell(job, 'retried')
end
local stages = stages_of(job)
for at = 3, #ARGV do
  local index = ARGV[at]
  local outcome = redis.call('HGET', key_job_outcomes(job), index)
  if outcome then
    local decoded = cjson.decode(outcome)
    redis.call('HDEL', key_job_outcomes(job), index)
    redis.call('HDEL', key_job_deaths(job), index)
    redis.call('HDEL', key_job_attempts(job), index)
    for _, stage in ipairs(stages) do
      redis.call('SETBIT', key_job_passed(job, stage.name), index, 0)
      if stage.grouped then
        redis.call('HINCRBY', key_job_awaited(job), redis.call('HGET', key_job_groups(job), index), 1)
      end
    end
    redis.call('HINCRBY', key_job(job), decoded.status == 'ok' and 'ok' or 'failed', -1)
    if decoded.status ~= 'ok' then redis.call('HINCRBY', key_job_reasons(job), decoded.error.type, -1) end
    if decoded.cached then redis.call('HINCRBY', key_job(job), 'cached', -1) end
    again[#again + 1] = tonumber(index)
  end
end
push_pending(job, stages[1].name, compress(again))
return #again
