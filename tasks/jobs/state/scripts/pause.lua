-- Pause or resume a job. Running chunks are finished; items of chunks that no worker has taken are pending again.
--
-- ARGV
--   1  job id
--   2  1 to pause, 0 to resume
-- Returns: the job's state, or '' when the job does not exist. A job that is not runnable is not changed.
-- @allow-oom
-- @include chunks
-- @include events
-- @include jobs
-- @include pending
local job_id, is_paused = ARGV[1], ARGV[2] == '1'
local state = jobs.state(job_id)
if not jobs.is_runnable(state) then return state or '' end
redis.call('HSET', keys.job(job_id), 'paused', is_paused and 1 or 0)
if is_paused then
  for _, chunk_id in ipairs(redis.call('SMEMBERS', keys.job_chunks(job_id))) do
    if redis.call('HGET', keys.chunk(chunk_id), 'state') == constants.DISPATCHED then chunks.undo_dispatch(chunk_id) end
  end
end
for _, stage in ipairs(jobs.stages(job_id)) do
  if is_paused then
    pending.make_unready(job_id, stage.name)
  else
    pending.make_ready_if_any(job_id, stage.name)
  end
end
local event = is_paused and 'paused' or 'resumed'
events.publish(job_id, event)
events.log(job_id, event)
return state
