-- Return of chunks: items of a chunk that were not counted are pending again.
-- @include away
-- @include chunks
-- @include claims
-- @include jobs
-- @include passed
-- @include pending
-- @include ranges
local returns = {}

-- Return the items of a set that are neither counted nor away, as a list.
function returns.left(job_id, stage, items)
  local left, is_any_away = {}, away.is_any(job_id)
  for _, index in ipairs(ranges.expand(items)) do
    if not passed.is_set(job_id, stage, index) and not (is_any_away and away.is_in(job_id, stage, index)) then
      left[#left + 1] = index
    end
  end
  return left
end

-- Make items of a chunk pending again, before other items of the stage.
function returns.put_back(job_id, stage, indices)
  local is_grouped = redis.call('HGET', keys.job(job_id), 'grouped:' .. stage) == '1'
  pending.push(job_id, stage, (is_grouped and '=' or '') .. ranges.compress(indices), true)
end

-- End a chunk whose holder does not run it any more: release its claims, and make the rest of its items pending again.
-- Returns the job of the chunk, and the number of these items.
function returns.end_chunk(chunk_id)
  local info = redis.call('HMGET', keys.chunk(chunk_id), 'job_id', 'stage', 'items')
  local job_id, stage = info[1], info[2]
  claims.release_all(chunk_id)
  chunks.drop(chunk_id)
  if not job_id or not jobs.is_runnable(jobs.state(job_id)) then return job_id, 0 end
  local left = returns.left(job_id, stage, info[3])
  returns.put_back(job_id, stage, left)
  return job_id, #left
end

return returns
