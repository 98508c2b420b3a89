-- Records of rollouts: limits, counters, and the clock of generation. A rollout has the id of its job.
-- @include clock
-- @include commands
-- @include totals
local rollouts = {}

-- Counters that are also summed over the rollouts for metrics; the sums outlive the rollouts.
local TOTALS = {put = true, acknowledged = true, dropped = true, returned = true, lost = true}

-- Add to a counter of a rollout. Returns its value.
function rollouts.count(rollout_id, field, number)
  if TOTALS[field] then totals.count(number, 'samples|' .. field) end
  return redis.call('HINCRBY', keys.rollout(rollout_id), field, number)
end

-- Return the limits and counters of a rollout, as texts.
function rollouts.config(rollout_id) return commands.read_hash(keys.rollout(rollout_id)) end

-- Record that a client uses the rollout, so that it is not ended as idle.
function rollouts.touch(rollout_id)
  redis.call('HSET', keys.rollout(rollout_id), 'touched_at', clock.stamp(clock.now()))
end

-- Return the number of samples in progress: of prompts that were begun and have no outcome yet.
function rollouts.in_progress(rollout_id, config)
  local info = redis.call('HMGET', keys.job(rollout_id), 'total', 'ok', 'failed')
  return (tonumber(info[1]) - tonumber(info[2]) - tonumber(info[3])) * tonumber(config.n)
end

-- Return the number of samples that consumers hold or have used.
function rollouts.taken(config)
  return tonumber(config.put) - tonumber(config.dropped) - tonumber(config.lost or 0) - tonumber(config.queued)
end

-- Return whether samples are being generated.
function rollouts.is_busy(config) return config.held ~= '1' and tonumber(config.generating) > 0 end

-- Start or stop the clock of generation, which runs while samples are generated. `resets`: whether to reset it to zero.
function rollouts.set_clock(rollout_id, is_busy, resets)
  local info, now = redis.call('HMGET', keys.rollout(rollout_id), 'busy_since', 'busy_s'), clock.now()
  local seconds = tonumber(info[2] or 0)
  if info[1] and info[1] ~= '' then seconds = seconds + now - tonumber(info[1]) end
  redis.call('HSET', keys.rollout(rollout_id), 'busy_since', is_busy and clock.stamp(now) or '',
    'busy_s', clock.stamp(resets and 0 or seconds))
end

-- Set the version of the trainer: a new version, or the previous version after a rollback. The limits of asynchronous
-- generation count from this version on.
function rollouts.set_version(rollout_id, version)
  local config = rollouts.config(rollout_id)
  redis.call('HSET', keys.rollout(rollout_id), 'version', version, 'version_at', clock.stamp(clock.now()),
    'since', tonumber(config.queued) + rollouts.in_progress(rollout_id, config), 'taken_before', rollouts.taken(config))
  rollouts.set_clock(rollout_id, rollouts.is_busy(config), true)
end

-- Delete every record of a rollout.
function rollouts.remove(rollout_id)
  redis.call('SREM', keys.rollouts(), rollout_id)
  redis.call('UNLINK', keys.rollout(rollout_id), keys.rollout_queue(rollout_id), keys.rollout_heads(rollout_id),
    keys.rollout_bodies(rollout_id), keys.rollout_batches(rollout_id), keys.rollout_leases(rollout_id),
    keys.rollout_consumers(rollout_id), keys.rollout_acknowledged(rollout_id), keys.rollout_puts(rollout_id),
    keys.rollout_recent(rollout_id), keys.rollout_times(rollout_id), keys.rollout_versions(rollout_id),
    keys.rollout_devices(rollout_id), keys.rollout_left(rollout_id))
end

return rollouts
