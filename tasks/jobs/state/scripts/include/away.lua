-- Items that are away: neither pending nor in a chunk, because they are parked before a retry, or wait for the claim of
-- another chunk. The hash `job_away` has an entry for each, so that an item is always in exactly one place.
local away = {}

local function field_of(stage, index) return stage .. '|' .. index end

-- Record that an item waits for the claim on a request; or, with '', that it is parked.
function away.add(job_id, stage, index, request)
  redis.call('HSET', keys.job_away(job_id), field_of(stage, index), request)
end

-- Remove the record of an item. Returns false if it was not away.
function away.remove(job_id, stage, index)
  return redis.call('HDEL', keys.job_away(job_id), field_of(stage, index)) == 1
end

function away.is_any(job_id) return redis.call('EXISTS', keys.job_away(job_id)) == 1 end

function away.is_in(job_id, stage, index)
  return redis.call('HEXISTS', keys.job_away(job_id), field_of(stage, index)) == 1
end

return away
