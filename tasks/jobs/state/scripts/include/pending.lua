-- Pending items: lists of the items that wait for a chunk of a stage, and sorted sets of the jobs with pending items.
-- @include away
-- @include clock
-- @include jobs
-- @include ranges
local pending = {}

-- Add the job to the sorted set in which `fill_queues` looks for work of this stage, unless the job is paused or the
-- stage is suspended. A job that was not in the set starts level with the least served job.
function pending.make_ready(job_id, stage)
  local info = redis.call('HMGET', keys.job(job_id), 'pool:' .. stage, 'priority', 'used:' .. stage, 'paused',
    'rests_until:' .. stage)
  if info[4] == '1' or tonumber(info[5] or 0) > clock.now() then return end
  local ready, member = keys.ready(info[1], info[2]), job_id .. '|' .. stage
  if redis.call('ZSCORE', ready, member) then return end
  local least = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
  redis.call('ZADD', ready, math.max(tonumber(info[3] or 0), tonumber(least[2] or 0)), member)
end

-- Remove the job from the sorted set in which `fill_queues` looks for work of this stage.
function pending.make_unready(job_id, stage)
  local info = redis.call('HMGET', keys.job(job_id), 'pool:' .. stage, 'priority')
  redis.call('ZREM', keys.ready(info[1], info[2]), job_id .. '|' .. stage)
end

-- Make the job ready if items of this stage are pending.
function pending.make_ready_if_any(job_id, stage)
  if redis.call('EXISTS', keys.job_pending(job_id, stage)) == 1 then pending.make_ready(job_id, stage) end
end

-- Suspend the stage until `due`: the service that it needs is unavailable, so its chunks would only occupy workers.
function pending.rest(job_id, stage, due)
  redis.call('HSET', keys.job(job_id), 'rests_until:' .. stage, clock.stamp(due))
  redis.call('ZADD', keys.parked(), clock.stamp(due), job_id .. '|' .. stage .. '|' .. constants.RESTED)
  pending.make_unready(job_id, stage)
end

-- Count in-flight items of a stored job: they left the pending list of its first stage and are not in its files yet, so
-- they take memory in Redis.
function pending.count_inflight(job_id, stage, number)
  local facts = jobs.facts(job_id)
  if facts.part_items > 0 and facts.first == stage then redis.call('HINCRBY', keys.job(job_id), 'inflight', number) end
end

-- Add an entry to the pending list of a stage; at the front when its items have waited before. An empty entry, and an
-- entry of a job that is not runnable, are ignored.
function pending.push(job_id, stage, entry, at_front)
  local number = ranges.count(entry)
  if number == 0 or not jobs.is_runnable(jobs.state(job_id)) then return end
  redis.call(at_front and 'LPUSH' or 'RPUSH', keys.job_pending(job_id, stage), entry)
  redis.call('HINCRBY', keys.job(job_id), 'pending:' .. stage, number)
  pending.count_inflight(job_id, stage, -number)
  pending.make_ready(job_id, stage)
end

-- Make an item pending again that was parked or waited for a claim. An item that is not away any more is ignored: a
-- retry of the job sent it back to its first stage meanwhile, or the job was removed.
function pending.resume(job_id, stage, index)
  if away.remove(job_id, stage, index) then pending.push(job_id, stage, index, true) end
end

return pending
