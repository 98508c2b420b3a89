-- Hold an active job back, or let it go on. Chunks that run are finished; chunks that wait go back to pending.
-- ARGV  1 job  2 1: pause, 0: resume
-- Returns the job's state, or '' when there is no such job.
local job, pause = ARGV[1], ARGV[2]
local state = redis.call('HGET', key_job(job), 'state')
if not is_active(state) then return state or '' end
redis.call('HSET', key_job(job), 'paused', pause)
if pause == '1' then
  for _, id in ipairs(redis.call('SMEMBERS', key_job_chunks(job))) do
    if redis.call('HGET', key_chunk(id), 'state') == 'dispatched' then return_chunk(id) end
  end
end
for _, stage in ipairs(stages_of(job)) do
  if pause == '1' then make_unready(job, stage.name)
  elseif redis.call('EXISTS', key_job_pending(job, stage.name)) == 1 then make_ready(job, stage.name) end
end
tell(job, pause == '1' and 'paused' or 'resumed')
note(job, pause == '1' and 'paused' or 'resumed')
return state
