-- Chunks: removal from their queue and from their worker, and release of their in-flight slots.
-- @include jobs
-- @include pending
local chunks = {}

-- Remove a chunk from its queue. Estimates are floats, so the load of an empty queue is deleted, which drops rounding
-- errors.
function chunks.leave_queue(chunk_id, queue, priority, seconds)
  redis.call('ZREM', keys.dispatched(queue), chunk_id)
  redis.call('SREM', keys.running(queue), chunk_id)
  if redis.call('ZCARD', keys.dispatched(queue)) + redis.call('SCARD', keys.running(queue)) == 0 then
    for _, each in ipairs(constants.PRIORITIES) do redis.call('HDEL', keys.loads(), queue .. '|' .. each) end
  else
    redis.call('HINCRBYFLOAT', keys.loads(), queue .. '|' .. priority, -tonumber(seconds))
  end
end

-- Release in-flight slots of a chunk, so that the job's concurrency limit admits more items.
function chunks.release_slots(chunk_id, job_id, stage, number)
  redis.call('HINCRBY', keys.chunk(chunk_id), 'out', -number)
  if redis.call('EXISTS', keys.job(job_id)) == 0 then return end
  redis.call('HINCRBY', keys.job(job_id), 'out:' .. stage, -number)
  pending.make_ready_if_any(job_id, stage)
end

-- Delete a chunk, its entry in the queue and the records of its holder. The caller handles its items and claims.
function chunks.drop(chunk_id)
  local info = redis.call('HMGET', keys.chunk(chunk_id),
    'job_id', 'queue', 'incarnation', 'seconds', 'priority', 'stage', 'out')
  local job_id, queue, incarnation, stage, out = info[1], info[2], info[3], info[6], tonumber(info[7] or 0)
  if not job_id then return end
  chunks.leave_queue(chunk_id, queue, info[5], info[4])
  redis.call('SREM', keys.job_chunks(job_id), chunk_id)
  if out > 0 then chunks.release_slots(chunk_id, job_id, stage, out) end
  local facts = jobs.facts(job_id)
  if facts.part_items > 0 and redis.call('SCARD', keys.job_chunks(job_id)) == 0 then
    pending.make_ready_if_any(job_id, facts.first) -- `fill_queues` may have held it back
  end
  if incarnation then
    redis.call('SREM', keys.held(incarnation), chunk_id)
    redis.call('HDEL', keys.batch(incarnation), chunk_id)
    if redis.call('EXISTS', keys.held(incarnation)) == 0 then
      redis.call('SREM', keys.holders(), incarnation)
      redis.call('DEL', keys.batch(incarnation))
    end
  end
  redis.call('DEL', keys.chunk(chunk_id), keys.chunk_claims(chunk_id))
end

-- Undo the dispatch of a chunk that no worker has taken: its items are pending again, for any queue.
function chunks.undo_dispatch(chunk_id)
  local info = redis.call('HMGET', keys.chunk(chunk_id), 'job_id', 'stage', 'items', 'mode')
  chunks.drop(chunk_id)
  if info[1] then pending.push(info[1], info[2], info[4] .. info[3], true) end
end

return chunks
