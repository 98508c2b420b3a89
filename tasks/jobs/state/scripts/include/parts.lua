-- Parts of a stored job: blocks of items whose outcomes move from Redis to a file once every item has an outcome.
-- @include jobs
-- @include passed
-- @include pending
local parts = {}

-- Record the file that has the outcomes of a part now, and delete them from Redis; without a file ('') they stay in
-- Redis. Returns false if the part was moved before.
function parts.move(job_id, part, file)
  if passed.set(job_id, constants.PARTS, part, 1) then return false end
  redis.call('HINCRBY', keys.job(job_id), 'inflight', -redis.call('HLEN', keys.job_outcomes(job_id, part)))
  if file ~= '' then
    redis.call('HSET', keys.job_parts(job_id), part, file)
    redis.call('UNLINK', keys.job_outcomes(job_id, part))
  end
  redis.call('HINCRBY', keys.job(job_id), 'merged', 1)
  pending.make_ready_if_any(job_id, jobs.facts(job_id).first)
  return true
end

-- Make the part pending in the stage that moves it, if every item of it has an outcome.
function parts.push_if_complete(job_id, part, settled)
  if settled == jobs.part_size(job_id, part) then pending.push(job_id, constants.PARTS, tostring(part)) end
end

return parts
