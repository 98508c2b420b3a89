-- Batches: samples leased to a consumer. The record of a batch is JSON: samples (their number), consumer, members (of
-- the queue, see samples.lua).
-- @include clock
-- @include commands
-- @include rollouts
-- @include samples
local batches = {}

-- Number of acknowledged batches whose ids are kept.
local ACKNOWLEDGED_KEPT = 1000

-- End the lease of a batch. Returns its record, or nil when the lease does not exist.
local function end_lease(rollout_id, batch)
  local text = redis.call('HGET', keys.rollout_batches(rollout_id), batch)
  if not text then return nil end
  local record, consumers = cjson.decode(text), keys.rollout_consumers(rollout_id)
  redis.call('HDEL', keys.rollout_batches(rollout_id), batch)
  redis.call('ZREM', keys.rollout_leases(rollout_id), batch)
  if redis.call('HGET', consumers, record.consumer) == batch then redis.call('HDEL', consumers, record.consumer) end
  rollouts.count(rollout_id, 'leased', -record.samples)
  return record
end

-- Lease samples of the queue as a batch.
function batches.lease(rollout_id, batch, consumer, members, number, lease_s)
  commands.in_pages('ZREM', keys.rollout_queue(rollout_id), members)
  redis.call('HSET', keys.rollout_batches(rollout_id), batch,
    cjson.encode({samples = number, consumer = consumer, members = members}))
  redis.call('ZADD', keys.rollout_leases(rollout_id), clock.stamp(clock.now() + lease_s), batch)
  if consumer ~= '' then redis.call('HSET', keys.rollout_consumers(rollout_id), consumer, batch) end
  rollouts.count(rollout_id, 'queued', -number)
  rollouts.count(rollout_id, 'leased', number)
  rollouts.count(rollout_id, 'handed', number)
end

-- Return the samples of a batch to the queue, at their old positions. Returns their number.
function batches.give_back(rollout_id, batch)
  local record = end_lease(rollout_id, batch)
  if not record then return 0 end
  local flat = {}
  for _, member in ipairs(record.members) do
    flat[#flat + 1] = samples.number_of(member)
    flat[#flat + 1] = member
  end
  commands.in_pages('ZADD', keys.rollout_queue(rollout_id), flat)
  rollouts.count(rollout_id, 'queued', record.samples)
  rollouts.count(rollout_id, 'returned', record.samples)
  return record.samples
end

-- Return the samples of batches whose lease has expired to the queue.
function batches.give_back_expired(rollout_id)
  local now = clock.stamp(clock.now())
  for _, batch in ipairs(redis.call('ZRANGEBYSCORE', keys.rollout_leases(rollout_id), '-inf', now)) do
    batches.give_back(rollout_id, batch)
  end
end

-- Acknowledge a batch: its samples were used. Returns their number, 0 when the batch was acknowledged before, -1 when
-- it returned to the queue or never existed; and the stubs of files to delete.
function batches.acknowledge(rollout_id, batch)
  local record, acknowledged = end_lease(rollout_id, batch), keys.rollout_acknowledged(rollout_id)
  if not record then return redis.call('ZSCORE', acknowledged, batch) and 0 or -1, {} end
  rollouts.count(rollout_id, 'acknowledged', record.samples)
  redis.call('ZADD', acknowledged, clock.stamp(clock.now()), batch)
  redis.call('ZREMRANGEBYRANK', acknowledged, 0, -ACKNOWLEDGED_KEPT - 1)
  return record.samples, samples.forget(rollout_id, record.members)
end

return batches
