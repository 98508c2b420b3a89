-- Return chunks that a live process holds by the ledger but does not run. This happens when Redis lost the last moment
-- before a failover or a crash, and with it the commits that had ended the chunks.
--
-- ARGV
--   1   incarnation
--   2.. chunk id and lease_id of each chunk
-- Returns: the number of chunks returned, and the number of items that are pending again.
-- Invariants:
--   * A chunk is returned only for the holder of its lease.
-- @allow-oom
-- @include events
-- @include jobs
-- @include returns
-- @include totals
local incarnation, returned, back = ARGV[1], 0, {}
for at = 2, #ARGV, 2 do
  local chunk_id = ARGV[at]
  local info = redis.call('HMGET', keys.chunk(chunk_id), 'incarnation', 'lease_id')
  if info[1] == incarnation and info[2] == ARGV[at + 1] then
    local job_id, rows = returns.end_chunk(chunk_id)
    returned, back[job_id] = returned + 1, (back[job_id] or 0) + rows
  end
end
totals.count(returned, 'recovered')
local items = 0
for job_id, rows in pairs(back) do
  items = items + rows
  if rows > 0 then events.log(job_id, 'recovered', {items = math.ceil(rows / jobs.facts(job_id).trials)}) end
end
return {returned, items}
