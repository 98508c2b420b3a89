-- The sample queue of a rollout, and what decides how much is generated. Commits use it, and the scripts of tasks/rollouts.
--
-- A bundle is what one item made, or what was put together from outside: samples of one prompt, or (loose) of several. It waits
-- as members "<number>:<first>-<last>" of the queue, samples counted from 0: one, or several when a batch took only a part of it.
--   head of a bundle  "<oldest version> <newest version> <samples> <1: loose> <samples left> <put at>"
--   a new bundle      "<oldest version> <newest version> <samples> <1: loose> <samples of several versions> <seconds> <body>"

local RECENT_BATCHES, RECENT_TIMES, ACKNOWLEDGED_KEPT = 64, 1000, 1000

-- Of these the cluster's totals have a sum that outlives the rollouts.
local COUNTED = {put = true, acknowledged = true, dropped = true, returned = true}

local function count_up(job, field, number)
  if COUNTED[field] then count_total(number, 'samples|' .. field) end
  return redis.call('HINCRBY', key_rollout(job), field, number)
end

local function size_of(member)
  local first, last = string.match(member, ':(%d+)%-(%d+)$')
  return last - first + 1
end

local function number_of(member) return string.match(member, '^(%d+)') end

put_bundles = function(job, bundles)
  if #bundles == 0 then return end
  local at, total, heads, bodies, members, times = stamp(now()), 0, {}, {}, {}, {}
  local number = count_up(job, 'number', #bundles) - #bundles
  local partial, span = 0, tonumber(redis.call('HGET', key_rollout(job), 'max_partial_span') or 0)
  for _, bundle in ipairs(bundles) do
    local oldest, newest, samples, loose, mixed, seconds, begin = string.match(bundle, '^(%d+) (%d+) (%d+) (%d) (%d+) (%S+) ()')
    number = number + 1
    for _, value in ipairs({number, table.concat({oldest, newest, samples, loose, samples, at}, ' ')}) do heads[#heads + 1] = value end
    for _, value in ipairs({number, string.sub(bundle, begin)}) do bodies[#bodies + 1] = value end
    for _, value in ipairs({number, string.format('%d:0-%d', number, samples - 1)}) do members[#members + 1] = value end
    times[#times + 1] = seconds
    total, partial, span = total + samples, partial + mixed, math.max(span, newest - oldest)
  end
  call_paged('HSET', key_rollout_heads(job), heads)
  call_paged('HSET', key_rollout_bodies(job), bodies)
  call_paged('ZADD', key_rollout_queue(job), members)
  call_paged('LPUSH', key_rollout_times(job), times)
  redis.call('LTRIM', key_rollout_times(job), 0, RECENT_TIMES - 1)
  count_up(job, 'queued', total)
  count_up(job, 'put', total)
  count_up(job, 'partial', partial)
  redis.call('HSET', key_rollout(job), 'max_partial_span', span)
end

-- These samples are wanted no more. Returns bodies of bundles that are gone now and lie in files.
local function forget_members(job, members)
  local files, gone = {}, {}
  for _, member in ipairs(members) do
    local number = number_of(member)
    local head = redis.call('HGET', key_rollout_heads(job), number)
    if head then
      local about, left, at = string.match(head, '^(%d+ %d+ %d+ %d) (%d+) (.+)$')
      left = left - size_of(member)
      if left > 0 then redis.call('HSET', key_rollout_heads(job), number, about .. ' ' .. left .. ' ' .. at)
      else gone[#gone + 1] = number end
    end
  end
  for _, number in ipairs(gone) do
    local body = redis.call('HGET', key_rollout_bodies(job), number)
    if body and string.sub(body, 1, 11) == '{"~stored":' then files[#files + 1] = body end
  end
  if #gone > 0 then
    call_paged('HDEL', key_rollout_heads(job), gone)
    call_paged('HDEL', key_rollout_bodies(job), gone)
  end
  return files
end

-- Samples of items that are under way.
local function under_way(job, config)
  local info = redis.call('HMGET', key_job(job), 'total', 'ok', 'failed')
  return (tonumber(info[1]) - tonumber(info[2]) - tonumber(info[3])) * tonumber(config.n)
end

local function config_of(job)
  local flat, config = redis.call('HGETALL', key_rollout(job)), {}
  for at = 1, #flat, 2 do config[flat[at]] = flat[at + 1] end
  return config
end

-- The clock of generation runs while something is to be generated and nobody holds it. Returns its seconds since the version began.
local function wind(job, is_busy, from_nothing)
  local info, at = redis.call('HMGET', key_rollout(job), 'busy_since', 'busy_s'), now()
  local seconds = tonumber(info[2] or 0)
  if info[1] and info[1] ~= '' then seconds = seconds + at - tonumber(info[1]) end
  redis.call('HSET', key_rollout(job), 'busy_since', is_busy and stamp(at) or '', 'busy_s', stamp(from_nothing and 0 or seconds))
end

local function is_busy(config) return config.held ~= '1' and tonumber(config.generating) > 0 end

note_generated = function(job, tally)
  if #tally.counted == 0 or redis.call('HGET', key_job(job), 'first') ~= tally.stage then return end
  if count_up(job, 'generating', -#tally.counted) == 0 then wind(job, false) end
end

-- Whether what devices generate now would be too stale already: the trainer is far ahead of the weights they hold.
local function is_in_vain(job, config)
  local target = redis.call('HGET', key_rollout_versions(job), 'target')
  return target and tonumber(config.version) - cjson.decode(target).number > tonumber(config.max_staleness)
end

-- Samples that consumers have, or had.
local function taken(config) return tonumber(config.put) - tonumber(config.dropped) - tonumber(config.queued) end

-- How many more prompts may be begun: no more than the queue has room for, and no more than will be fresh when they are used.
local function room_of(job, config)
  if config.max_staleness ~= '' and is_in_vain(job, config) then return 0 end
  local n, running = tonumber(config.n), under_way(job, config)
  local groups = math.floor((tonumber(config.max_queue_size) - tonumber(config.queued) - running) / n)
  local concurrent = tonumber(config.max_concurrent)
  if concurrent > 0 then groups = math.min(groups, math.max(math.floor((concurrent - running) / n), running == 0 and 1 or 0)) end
  local batch = tonumber(config.batch)
  if config.rule == 'proportion' then
    local most = batch * (1 + tonumber(config.threshold)) * tonumber(config.trigger)
    groups = math.min(groups, math.ceil((most - tonumber(config.since)) / n))
  elseif config.max_staleness ~= '' then
    -- A batch of this version and one of each that may come before the youngest sample is too stale.
    local most = tonumber(config.taken_before) + (tonumber(config.max_staleness) + 1) * batch
    groups = math.min(groups, math.ceil((most - taken(config) - tonumber(config.queued) - running) / n))
  end
  return groups
end

-- Begin as many prompts as may be under way. Idempotent: computed from what is there. Returns their number.
feed = function(job)
  local info = redis.call('HMGET', key_job(job), 'state', 'open', 'total', 'first', 'paused')
  local config = config_of(job)
  if config.generates ~= '1' or config.held == '1' or info[5] == '1' or not is_active(info[1]) or info[2] ~= '1' then return 0 end
  local first, limit = tonumber(info[3]), tonumber(config.limit)
  local groups = math.min(room_of(job, config), 1000)
  if limit > 0 then groups = math.min(groups, limit - first) end
  if groups > 0 then
    redis.call('HINCRBY', key_job(job), 'total', groups)
    count_up(job, 'since', groups * config.n)
    if count_up(job, 'generating', groups) == groups then wind(job, true) end
    push_pending(job, info[4], first .. '-' .. (first + groups - 1))
  end
  if limit > 0 and first + math.max(groups, 0) >= limit then redis.call('HSET', key_job(job), 'open', '0') end
  return math.max(groups, 0)
end

-- The trainer has another version, or the last one again: how far ahead may be generated counts from here.
local function new_version(job, version)
  local config = config_of(job)
  redis.call('HSET', key_rollout(job), 'version', version, 'version_at', stamp(now()),
    'since', tonumber(config.queued) + under_way(job, config), 'taken_before', taken(config))
  wind(job, is_busy(config), true)
end

-- A batch as it was handed out: its members, how many samples they are, and to whom.
local function batch_of(job, batch)
  local record = redis.call('HGET', key_rollout_batches(job), batch)
  if not record then return end
  local number, consumer, list = string.match(record, '^(%d+) ([^|]*)|(.*)$')
  local members = {}
  for member in string.gmatch(list, '%S+') do members[#members + 1] = member end
  return members, tonumber(number), consumer
end

local function end_batch(job, batch, number, consumer)
  redis.call('HDEL', key_rollout_batches(job), batch)
  redis.call('ZREM', key_rollout_leases(job), batch)
  if redis.call('HGET', key_rollout_consumers(job), consumer) == batch then redis.call('HDEL', key_rollout_consumers(job), consumer) end
  count_up(job, 'leased', -number)
end

-- Its samples wait again where they were. Returns their number.
local function give_back(job, batch)
  local members, number, consumer = batch_of(job, batch)
  if not members then return 0 end
  end_batch(job, batch, number, consumer)
  local flat = {}
  for _, member in ipairs(members) do
    flat[#flat + 1] = number_of(member)
    flat[#flat + 1] = member
  end
  call_paged('ZADD', key_rollout_queue(job), flat)
  count_up(job, 'queued', number)
  count_up(job, 'returned', number)
  return number
end

local function give_back_lapsed(job)
  for _, batch in ipairs(redis.call('ZRANGEBYSCORE', key_rollout_leases(job), '-inf', stamp(now()))) do give_back(job, batch) end
end

-- Returns the number of samples, 0 when it was done before, -1 when the batch went back to the queue or never was; and files that
-- nobody needs any more.
local function acknowledge(job, batch)
  local members, number, consumer = batch_of(job, batch)
  if not members then return redis.call('ZSCORE', key_rollout_acknowledged(job), batch) and 0 or -1, {} end
  end_batch(job, batch, number, consumer)
  count_up(job, 'acknowledged', number)
  redis.call('ZADD', key_rollout_acknowledged(job), stamp(now()), batch)
  redis.call('ZREMRANGEBYRANK', key_rollout_acknowledged(job), 0, -ACKNOWLEDGED_KEPT - 1)
  return number, forget_members(job, members)
end

local function touch(job) redis.call('HSET', key_rollout(job), 'touched_at', stamp(now())) end

local function forget_rollout(job)
  redis.call('SREM', key_rollouts(), job)
  redis.call('UNLINK', key_rollout(job), key_rollout_queue(job), key_rollout_heads(job), key_rollout_bodies(job),
    key_rollout_batches(job), key_rollout_leases(job), key_rollout_consumers(job), key_rollout_acknowledged(job), key_rollout_puts(job),
    key_rollout_recent(job), key_rollout_times(job), key_rollout_versions(job), key_rollout_devices(job), key_rollout_left(job))
end
