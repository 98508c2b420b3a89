-- Feeding: begins prompts of a rollout while its limits allow more samples.
-- @include jobs
-- @include pending
-- @include rollouts
local feeding = {}

-- Maximum prompts that a call begins.
local MOST_PROMPTS = 1000

-- Return whether samples generated now would be too stale, because the trainer is too far ahead of the target weights
-- of the devices.
local function is_futile(rollout_id, config)
  local target = redis.call('HGET', keys.rollout_versions(rollout_id), 'target')
  return target and tonumber(config.version) - cjson.decode(target).number > tonumber(config.max_staleness)
end

-- Return the number of further prompts that may begin: limited by the room of the queue, and by the number of samples
-- that will still be fresh when they are used.
local function room_of(rollout_id, config)
  if config.max_staleness ~= '' and is_futile(rollout_id, config) then return 0 end
  local n, running = tonumber(config.n), rollouts.in_progress(rollout_id, config)
  local queued, batch, concurrent = tonumber(config.queued), tonumber(config.batch), tonumber(config.max_concurrent)
  local prompts = math.floor((tonumber(config.max_queue_size) - queued - running) / n)
  if concurrent > 0 then
    prompts = math.min(prompts, math.max(math.floor((concurrent - running) / n), running == 0 and 1 or 0))
  end
  if config.rule == 'proportion' then
    local most = batch * (1 + tonumber(config.threshold)) * tonumber(config.trigger)
    prompts = math.min(prompts, math.ceil((most - tonumber(config.since)) / n))
  elseif config.max_staleness ~= '' then
    -- A batch for this version, and a batch for each later version at which the youngest sample is still fresh.
    local most = tonumber(config.taken_before) + (tonumber(config.max_staleness) + 1) * batch
    prompts = math.min(prompts, math.ceil((most - rollouts.taken(config) - queued - running) / n))
  end
  return prompts
end

-- Begin as many prompts as the limits allow. Idempotent: computed from the ledger. Returns their number.
function feeding.feed(rollout_id)
  local info = redis.call('HMGET', keys.job(rollout_id), 'state', 'open', 'total', 'first', 'paused')
  local config = rollouts.config(rollout_id)
  if config.generates ~= '1' or config.held == '1' or info[5] == '1' then return 0 end
  if not jobs.is_runnable(info[1]) or info[2] ~= '1' then return 0 end
  local first, limit = tonumber(info[3]), tonumber(config.limit)
  local prompts = math.min(room_of(rollout_id, config), MOST_PROMPTS)
  if limit > 0 then prompts = math.min(prompts, limit - first) end
  prompts = math.max(prompts, 0)
  if prompts > 0 then
    redis.call('HINCRBY', keys.job(rollout_id), 'total', prompts)
    rollouts.count(rollout_id, 'since', prompts * config.n)
    if rollouts.count(rollout_id, 'generating', prompts) == prompts then rollouts.set_clock(rollout_id, true) end
    pending.push(rollout_id, info[4], first .. '-' .. (first + prompts - 1))
  end
  if limit > 0 and first + prompts >= limit then redis.call('HSET', keys.job(rollout_id), 'open', '0') end
  return prompts
end

return feeding
