-- Begin an engine batch: claim the requests of its items, park items whose request another chunk computes now, and
-- record the batch.
--
-- ARGV
--   1   incarnation
--   2   lease_id of the chunks
--   3   deadline of the batch in seconds from now
--   4.. per chunk: chunk id, number of items, then index and request hash ('' for none) of each item
-- Returns: one letter per item: `r` run it; `w` it waits for the claim of another chunk; `x` drop it, because it is
-- counted already or its job has ended.
-- Invariants:
--   * A request is claimed by at most one chunk at a time.
--   * A waiting item belongs to the claim that it waits for, and no longer to its chunk.
--   * Only items of the recorded batch are suspects if the worker dies.
-- @include away
-- @include clock
-- @include jobs
-- @include passed
-- @include ranges
local incarnation, lease_id, timeout_s = ARGV[1], ARGV[2], tonumber(ARGV[3])
local batch, now = keys.batch(incarnation), clock.now()
local record = {'begun_at', clock.stamp(now), 'deadline_at', clock.stamp(now + timeout_s)}
local verdicts, is_owner = {}, false

-- Claim a request for a chunk, or let the item wait for the chunk that has claimed it. Returns the item's verdict.
local function claim(chunk_id, request, job_id, stage, index)
  local owner = redis.call('GET', keys.claim(request))
  if owner == chunk_id then return 'r' end
  if owner and redis.call('EXISTS', keys.chunk(owner)) == 1 then
    redis.call('SADD', keys.waiters(request), job_id .. '|' .. stage .. '|' .. index)
    redis.call('EXPIRE', keys.waiters(request), constants.CLAIM_S)
    away.add(job_id, stage, index, request)
    return 'w'
  end
  redis.call('SET', keys.claim(request), chunk_id, 'EX', constants.CLAIM_S)
  redis.call('SADD', keys.chunk_claims(chunk_id), request)
  return 'r'
end

local at = 4
while at <= #ARGV do
  local chunk_id, number = ARGV[at], tonumber(ARGV[at + 1])
  local info = redis.call('HMGET', keys.chunk(chunk_id), 'job_id', 'stage', 'lease_id', 'items')
  local job_id, stage = info[1], info[2]
  local is_ours = info[3] == lease_id and jobs.is_runnable(jobs.state(job_id))
  is_owner = is_owner or is_ours
  local run, parked = {}, {}
  for offset = 0, number - 1 do
    local index, request, verdict = ARGV[at + 2 + offset * 2], ARGV[at + 3 + offset * 2], 'x'
    if is_ours and not passed.is_set(job_id, stage, index) then
      verdict = request == '' and 'r' or claim(chunk_id, request, job_id, stage, index)
    end
    if verdict == 'r' then run[#run + 1] = tonumber(index) end
    if verdict == 'w' then parked[tonumber(index)] = true end
    verdicts[#verdicts + 1] = verdict
  end
  if next(parked) then
    local kept = {}
    for _, index in ipairs(ranges.expand(info[4])) do
      if not parked[index] then kept[#kept + 1] = index end
    end
    redis.call('HSET', keys.chunk(chunk_id), 'items', ranges.compress(kept))
  end
  if #run > 0 then
    record[#record + 1] = chunk_id
    record[#record + 1] = ranges.compress(run)
  else
    redis.call('HDEL', batch, chunk_id)
  end
  at = at + 2 + number * 2
end
redis.call('HDEL', batch, 'late') -- left over from the previous batch
if is_owner then
  redis.call('HSET', batch, unpack(record))
  redis.call('EXPIRE', batch, constants.CLAIM_S)
end
return table.concat(verdicts)
