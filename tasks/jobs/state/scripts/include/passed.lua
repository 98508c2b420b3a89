-- Bitmaps of counted results: a bit per item and stage, set once the item's result of the stage is counted. They are
-- kept in pages, so that a job that grows without end can delete its oldest pages.
local passed = {}

local function key_of(job_id, stage, index)
  return keys.job_passed(job_id, stage, math.floor(index / constants.PAGE_ITEMS))
end

-- Return whether the item's result is counted.
function passed.is_set(job_id, stage, index)
  return redis.call('GETBIT', key_of(job_id, stage, index), index % constants.PAGE_ITEMS) == 1
end

-- Set the bit to 0 or 1. Returns whether it was 1 before.
function passed.set(job_id, stage, index, bit)
  return redis.call('SETBIT', key_of(job_id, stage, index), index % constants.PAGE_ITEMS, bit) == 1
end

return passed
