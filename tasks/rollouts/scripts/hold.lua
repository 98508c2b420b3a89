-- Stop generating, or go on. Chunks of the first stage that wait go back; what runs is finished. Later stages go on.
-- ARGV  1 rollout  2 1: hold, 0: go on, '': only look
-- Returns whether it is held, chunks of the first stage that run, prompts begun.
local job, wish = ARGV[1], ARGV[2]
local first, begun, running = redis.call('HGET', key_job(job), 'first'), 0, 0
local before = redis.call('HGET', key_rollout(job), 'held') or '0'
if wish ~= '' then touch(job) end
if wish == '1' and before ~= '1' then
  redis.call('HSET', key_rollout(job), 'held', 1)
  count_up(job, 'pauses', 1)
  wind(job, false)
  redis.call('HSET', key_job(job), 'rests_until:' .. first, stamp(1e12)) -- which `make_ready` looks at
  make_unready(job, first)
  for _, id in ipairs(redis.call('SMEMBERS', key_job_chunks(job))) do
    local info = redis.call('HMGET', key_chunk(id), 'state', 'stage')
    if info[1] == 'dispatched' and info[2] == first then return_chunk(id) end
  end
  tell(job, 'paused')
elseif wish == '0' and before == '1' then
  redis.call('HSET', key_rollout(job), 'held', 0)
  count_up(job, 'resumes', 1)
  redis.call('HDEL', key_job(job), 'rests_until:' .. first)
  if redis.call('EXISTS', key_job_pending(job, first)) == 1 then make_ready(job, first) end
  wind(job, is_busy(config_of(job)))
  begun = feed(job)
  tell(job, 'resumed')
end
for _, id in ipairs(redis.call('SMEMBERS', key_job_chunks(job))) do
  local info = redis.call('HMGET', key_chunk(id), 'state', 'stage')
  if info[1] == 'running' and info[2] == first then running = running + 1 end
end
return {tonumber(redis.call('HGET', key_rollout(job), 'held') or 0), running, begun}
