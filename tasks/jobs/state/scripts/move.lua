-- Move the outcomes of a part from Redis to the file that has a copy of them. Idempotent.
--
-- ARGV
--   1  job id
--   2  chunk id
--   3  lease_id of the chunk
--   4  part
--   5  file, or '' to keep the outcomes in Redis
--   6  1 when the chunk ends with this call
-- Returns: 1 when the file is the part's file now, else 0.
-- Invariants:
--   * An outcome is deleted from Redis in the same atomic step that records the name of its file.
--   * Only the holder of the chunk's lease changes anything. A part of an ended chunk that was not moved is pending
--     again.
--   * If two workers write files for a part, the first file stays the part's file.
--   * A file that a later file replaces stays: Redis may lose this call in a failover, and then names it again.
-- @allow-oom
-- @include endings
-- @include jobs
-- @include parts
-- @include returns
local job_id, chunk_id, lease_id = ARGV[1], ARGV[2], ARGV[3]
local part, file, is_over = tonumber(ARGV[4]), ARGV[5], ARGV[6] == '1'
local is_moved = file ~= '' and redis.call('HGET', keys.job_parts(job_id), part) == file -- an earlier reply was lost
if redis.call('HGET', keys.chunk(chunk_id), 'lease_id') ~= lease_id then return is_moved and 1 or 0 end
if jobs.is_runnable(jobs.state(job_id)) then
  is_moved = is_moved or parts.move(job_id, part, file)
  endings.check(job_id)
end
if is_over then returns.end_chunk(chunk_id) end
return is_moved and 1 or 0
