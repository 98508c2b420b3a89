-- Park a stage of a job whose storage is unavailable: end chunks of it that cannot run, and suspend the stage, so that
-- its chunks do not occupy workers. No attempt is counted, and no item fails.
--
-- ARGV
--   1   job id
--   2   stage
--   3   seconds until the stage is tried again
--   4   TTL in seconds of the record of waiting stages
--   5.. chunk id and lease_id of each chunk that ends
-- Returns: the number of items that are pending again from these chunks.
-- Invariants:
--   * A chunk is ended only for the holder of its lease. When it ends, each of its items is counted, away or pending.
--   * Chunks of the stage that no worker has taken are pending again.
-- @allow-oom
-- @include chunks
-- @include clock
-- @include jobs
-- @include pending
-- @include returns
local FIRST_CHUNK = 5
local job_id, stage, delay_s, kept_s = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local back = 0
if jobs.is_runnable(jobs.state(job_id)) then
  local now = clock.now()
  local due = now + delay_s
  pending.rest(job_id, stage, due)
  redis.call('ZADD', keys.storage_waiting(), clock.stamp(due), job_id .. '|' .. stage)
  redis.call('ZREMRANGEBYSCORE', keys.storage_waiting(), '-inf', '(' .. clock.stamp(now - kept_s))
  redis.call('EXPIRE', keys.storage_waiting(), math.ceil(delay_s + kept_s))
  for _, chunk_id in ipairs(redis.call('SMEMBERS', keys.job_chunks(job_id))) do
    local info = redis.call('HMGET', keys.chunk(chunk_id), 'stage', 'state')
    if info[1] == stage and info[2] == constants.DISPATCHED then chunks.undo_dispatch(chunk_id) end
  end
end
for at = FIRST_CHUNK, #ARGV, 2 do
  if redis.call('HGET', keys.chunk(ARGV[at]), 'lease_id') == ARGV[at + 1] then
    local _, rows = returns.end_chunk(ARGV[at])
    back = back + rows
  end
end
return back
