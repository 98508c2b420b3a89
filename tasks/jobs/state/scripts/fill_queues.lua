-- Scheduler: fill the queues of a pool with new chunks, up to the window of each queue. Idempotent, since it depends on
-- the ledger only.
--
-- ARGV
--   1   pool
--   2   target duration of a chunk in seconds of work
--   3   minimum duration of a chunk in seconds of work
--   4   maximum number of items of a chunk
--   5   consumers of the pool
--   6   queue whose waiting chunks are counted in the reply, or ''
--   7   suffix of the ids of the new chunks, random, so that an id is never used twice, even if Redis lost the last
--       chunks that it had numbered
--   8.. four values per queue: queue, its consumers, models loaded by its worker (separated by commas), pools that it
--       serves (separated by commas)
-- Returns: the number of chunks that wait on the queue of ARGV[6]; then queue, chunk id, job id and priority of each
-- message to publish. If several chunks wait on a queue already, their messages are enough: a worker that ends a chunk
-- takes the next chunk.
-- Invariants:
--   * A chunk is in the ledger before its message exists.
--   * An item is in one chunk or in one pending entry, never in both.
-- @hooks
-- @include chunks
-- @include clock
-- @include jobs
-- @include pending
-- @include ranges
local FIRST_QUEUE, FIELDS = 8, 4
-- Maximum number of chunks per consumer that a queue may hold, even while the chunks are small.
local MOST_CHUNKS = 256
-- Chunks per consumer: the chunk in progress and the next chunk. More for an engine with continuous batching, which
-- admits items as rows become free, so that the slowest item of a chunk does not leave the engine half empty.
local WINDOW, STREAMED_WINDOW = 2, 6
-- Number of jobs read at a time to choose the next chunk of a queue, and the maximum number of jobs read.
local PAGE, MOST_LOOKED_AT = 16, 256
-- A job whose model is loaded may go first while it is this many chunks ahead of the least served job.
local LOADED_LEAD = 4
-- A chunk may use at most 1/16 of a job's concurrency limit, so that the slowest item of the chunk blocks only a part
-- of the limit.
local SHARE_OF_LIMIT = 16

local pool, target_s, least_s, most_items = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local consumers = math.max(1, tonumber(ARGV[5]))
local reply = {0}

local function is_listed(list, name) return string.find(',' .. list .. ',', ',' .. name .. ',', 1, true) end

local function is_open(queue) return redis.call('EXISTS', keys.queue_mode(queue)) == 0 end

-- Return the position of a queue among the open queues that serve this pool, counted from 1.
local function place_of(queue, kind_of_work)
  local place = 0
  for at = FIRST_QUEUE, #ARGV, FIELDS do
    if is_listed(ARGV[at + 3], kind_of_work) and is_open(ARGV[at]) then place = place + 1 end
    if ARGV[at] == queue then return place end
  end
end

-- Return whether a device queue gets no work of a job: a hook of the job's kind bars the queue, or the job's limit of
-- slots is used up by queues before it.
local function is_barred(job_id, stage, queue)
  if pool ~= 'device' then return false end
  local kind_hooks = hooks[jobs.facts(job_id).kind]
  if kind_hooks and kind_hooks.is_barred and kind_hooks.is_barred(job_id, queue) then return true end
  local info = redis.call('HMGET', keys.job(job_id), 'slots', 'pool:' .. stage)
  return info[1] and place_of(queue, info[2]) > tonumber(info[1])
end

-- Return a page of jobs that are ready for a queue, least served first: a flat list of member and seconds of work that
-- it received.
local function read_ready(takes, priority, first)
  local last = first + PAGE - 1
  if takes == pool then return redis.call('ZRANGE', keys.ready(pool, priority), first, last, 'WITHSCORES') end
  local found, flat = {}, {}
  for each in string.gmatch(takes, '[^,]+') do
    local page = redis.call('ZRANGE', keys.ready(each, priority), first, last, 'WITHSCORES')
    for at = 1, #page, 2 do found[#found + 1] = {page[at], page[at + 1]} end
  end
  table.sort(found, function(one, other) return tonumber(one[2]) < tonumber(other[2]) end)
  for _, pair in ipairs(found) do flat[#flat + 1], flat[#flat + 2] = pair[1], pair[2] end
  return flat
end

local function is_loaded(job_id, loaded)
  local model = string.match(redis.call('HGET', keys.job(job_id), 'batch_key') or '', '|(.*)')
  return model and is_listed(loaded, model)
end

-- Return the next job and stage of a priority for a queue: the least served job, or a job close to it whose model is
-- loaded. If every job of a page is barred from the queue, reads the next page, so that jobs bound to some devices
-- leave no other device idle.
local function choose_of(queue, loaded, takes, priority)
  for first = 0, MOST_LOOKED_AT - 1, PAGE do
    local ready, chosen, least = read_ready(takes, priority, first), nil, nil
    if #ready == 0 then return nil end
    for at = 1, #ready, 2 do
      local served = tonumber(ready[at + 1])
      local job_id, stage = string.match(ready[at], '^([^|]+)|(.+)$')
      if not is_barred(job_id, stage, queue) then
        if not chosen then chosen, least = ready[at], served end
        if loaded == '' or served > least + LOADED_LEAD * target_s then break end
        if is_loaded(job_id, loaded) then
          chosen = ready[at]
          break
        end
      end
    end
    if chosen then return string.match(chosen, '^([^|]+)|(.+)$') end
  end
end

local function choose(queue, loaded, takes)
  for _, priority in ipairs(constants.PRIORITIES) do
    local job_id, stage = choose_of(queue, loaded, takes, priority)
    if job_id then return job_id, stage, priority end
  end
end

-- Take up to `wanted` items from a pending list. Returns their ranges, their mode and their number.
local function take_pending(job_id, stage, wanted)
  local list, taken, number = keys.job_pending(job_id, stage), {}, 0
  while number < wanted do
    local entry = redis.call('LPOP', list)
    if not entry then break end
    local mode = string.match(entry, '^[=!]') or ''
    if mode ~= '' then
      if number == 0 then return string.sub(entry, 2), mode, ranges.count(entry) end
      redis.call('LPUSH', list, entry)
      break
    end
    local left = {}
    for first, last in ranges.each(entry) do
      local used = math.min(last - first + 1, wanted - number)
      if used > 0 then taken[#taken + 1] = first .. '-' .. (first + used - 1) end
      if first + used <= last then left[#left + 1] = (first + used) .. '-' .. last end
      number = number + used
    end
    if #left > 0 then redis.call('LPUSH', list, table.concat(left, ',')) end
  end
  return table.concat(taken, ','), '', number
end

-- Return the estimated seconds per item of the job on this queue, and the maximum seconds of work of a chunk. Each
-- device is measured separately, because devices differ in speed. Until a device is measured it gets short chunks, so
-- that a slow device does not hold work that a faster device would have finished long before.
local function cost_on(queue, job_id, mean)
  if pool ~= 'device' then return mean, target_s end
  local done = redis.call('HMGET', keys.job_workers(job_id), queue, queue .. ':s')
  if not done[1] or not done[2] or tonumber(done[1]) < 1 then return mean, target_s / 4 end
  return math.max(tonumber(done[2]) / tonumber(done[1]), 0.000001), target_s
end

-- Return the number of items that a chunk should have, and the estimated seconds per item. A chunk is about `target_s`
-- of work; shorter near the end of the job, so that no consumer is left with a long last chunk; but at least `least_s`.
local function size_of_chunk(queue, job_id, stage)
  local info = redis.call('HMGET', keys.job(job_id), 'cost:' .. stage, 'pending:' .. stage, 'batch_items:' .. stage,
    'least_items:' .. stage)
  local mean, left, batch = math.max(tonumber(info[1]), 0.000001), tonumber(info[2]), tonumber(info[3])
  local cost, most_s = cost_on(queue, job_id, mean)
  local share = math.ceil(left / (2 * consumers) * math.min(1, mean / cost))
  local full = math.max(math.floor(most_s / cost), tonumber(info[4] or 1))
  local worthwhile = math.max(math.floor(least_s / cost), math.min(batch, math.ceil(left / consumers)))
  return math.max(1, math.min(most_items, full, math.max(share, worthwhile))), cost
end

-- Put a chunk into a queue, and its message into the reply, unless enough messages wait on the queue already.
local function dispatch(queue, readers, chunk_id, job_id, priority, sequence, seconds)
  redis.call('ZADD', keys.dispatched(queue), constants.RANKS[priority] * constants.PRIORITY_SPAN + sequence, chunk_id)
  redis.call('HINCRBYFLOAT', keys.loads(), queue .. '|' .. priority, seconds)
  redis.call('SADD', keys.queues(), queue)
  if redis.call('ZCARD', keys.dispatched(queue)) > 2 * readers then return end
  for _, value in ipairs({queue, chunk_id, job_id, priority}) do reply[#reply + 1] = value end
end

-- Return whether the window of a queue admits another chunk of this priority. Waiting chunks of lower priority do not
-- count, since they can wait longer.
local function has_room(queue, readers, priority, streams)
  local rank = constants.RANKS[priority]
  local waiting = redis.call('ZCOUNT', keys.dispatched(queue), '-inf', (rank + 1) * constants.PRIORITY_SPAN)
  local held, load = waiting + redis.call('SCARD', keys.running(queue)), 0
  if held < (streams and STREAMED_WINDOW or WINDOW) * readers then return true end
  for at = 1, rank + 1 do
    load = load + tonumber(redis.call('HGET', keys.loads(), queue .. '|' .. constants.PRIORITIES[at]) or 0)
  end
  return held < MOST_CHUNKS * readers and load < 2 * target_s * readers
end

-- Backpressure: return whether a stored job gets no new items, because too many outcomes wait to be moved out of Redis.
-- False if the job has no chunk or part in progress that could free its window: then its groups are larger than the
-- window, and get the items that they need.
local function is_held_back(job_id, stage)
  local facts = jobs.facts(job_id)
  if facts.part_items == 0 or facts.first ~= stage then return false end
  local info = redis.call('HMGET', keys.job(job_id), 'inflight', 'window_items', 'pending:' .. constants.PARTS)
  if tonumber(info[1]) < tonumber(info[2]) then return false end
  return redis.call('SCARD', keys.job_chunks(job_id)) > 0 or tonumber(info[3]) > 0
end

-- Return the number of wanted items that the job's concurrency limit admits, and whether the job has a limit.
local function admit(job_id, stage, wanted)
  local info = redis.call('HMGET', keys.job(job_id), 'most_out:' .. stage, 'out:' .. stage)
  local most = tonumber(info[1] or 0)
  if most == 0 then return wanted, false end
  local share = math.max(1, math.floor(most / SHARE_OF_LIMIT))
  return math.min(wanted, share, most - tonumber(info[2] or 0)), true
end

-- Dispatch a chunk to a queue. Returns whether the queue may get further chunks.
local function add_chunk(queue, readers, loaded, takes)
  local job_id, stage, priority = choose(queue, loaded, takes)
  if not job_id then return false end
  local job = keys.job(job_id)
  local info = redis.call('HMGET', job, 'streams:' .. stage, 'pool:' .. stage, 'batch_key')
  if not has_room(queue, readers, priority, info[1] == '1') then return false end
  local wanted, cost, is_limited = 0, 0, false
  if not is_held_back(job_id, stage) then
    wanted, cost = size_of_chunk(queue, job_id, stage)
    wanted, is_limited = admit(job_id, stage, wanted)
  end
  if wanted <= 0 then
    pending.make_unready(job_id, stage)
    return true
  end
  local items, mode, number = take_pending(job_id, stage, wanted)
  if redis.call('EXISTS', keys.job_pending(job_id, stage)) == 0 then pending.make_unready(job_id, stage) end
  if number == 0 then return true end
  redis.call('HINCRBY', job, 'pending:' .. stage, -number)
  pending.count_inflight(job_id, stage, number)
  local seconds, at = number * cost, clock.stamp(clock.now())
  redis.call('HINCRBYFLOAT', job, 'used:' .. stage, seconds)
  redis.call('HSET', job, 'served_at:' .. stage, at)
  local ready, member = keys.ready(info[2], priority), job_id .. '|' .. stage
  if redis.call('ZSCORE', ready, member) then redis.call('ZINCRBY', ready, seconds, member) end
  local sequence = redis.call('INCR', keys.sequence())
  local chunk_id = job_id .. '.' .. sequence .. '-' .. ARGV[7]
  redis.call('HSET', keys.chunk(chunk_id), 'job_id', job_id, 'stage', stage, 'items', items, 'count', number,
    'mode', mode, 'queue', queue, 'state', constants.DISPATCHED, 'dispatched_at', at, 'priority', priority,
    'sequence', sequence, 'seconds', seconds, 'batch_key', info[3])
  if is_limited then
    redis.call('HINCRBY', job, 'out:' .. stage, number)
    redis.call('HSET', keys.chunk(chunk_id), 'out', number)
  end
  redis.call('SADD', keys.job_chunks(job_id), chunk_id)
  dispatch(queue, readers, chunk_id, job_id, priority, sequence, seconds)
  return true
end

-- Return the last chunk that waits on `queue`, if a queue that serves the pools `takes` may steal it. The thief must be
-- idle, unless the chunk's stage runs with continuous batching, whose engine admits items as rows become free.
local function last_for(queue, takes, is_idle)
  local chunk_id = redis.call('ZRANGE', keys.dispatched(queue), -1, -1)[1]
  if not chunk_id then return end
  local info = redis.call('HMGET', keys.chunk(chunk_id), 'job_id', 'stage')
  local job_id, stage = info[1] or '', info[2] or ''
  local about = redis.call('HMGET', keys.job(job_id), 'pool:' .. stage, 'streams:' .. stage)
  if not is_idle and about[2] ~= '1' then return end
  return is_listed(takes, about[1] or '') and chunk_id
end

-- Work stealing: give a queue without pending work a chunk that waits behind a busy device. If the queue itself runs a
-- chunk, steal only from a device with several waiting chunks.
local function steal(queue, takes, is_idle)
  local victim, most_waiting = nil, is_idle and 0 or 1
  for _, other in ipairs(redis.call('SMEMBERS', keys.queues())) do
    local is_device = string.sub(other, 1, 4) == 'gpu.'
    if other ~= queue and is_device and redis.call('SCARD', keys.running(other)) > 0 then
      local waiting = redis.call('ZCARD', keys.dispatched(other))
      if waiting > most_waiting and last_for(other, takes, is_idle) then victim, most_waiting = other, waiting end
    end
  end
  if not victim then return end
  local chunk_id = last_for(victim, takes, is_idle)
  local info = redis.call('HMGET', keys.chunk(chunk_id), 'job_id', 'priority', 'sequence', 'seconds', 'stage')
  local job_id, priority, sequence, seconds = info[1], info[2], tonumber(info[3]), info[4]
  if is_barred(job_id, info[5], queue) then return end
  chunks.leave_queue(chunk_id, victim, priority, seconds)
  redis.call('HSET', keys.chunk(chunk_id), 'queue', queue, 'dispatched_at', clock.stamp(clock.now()))
  dispatch(queue, 1, chunk_id, job_id, priority, sequence, seconds)
end

-- Dispatch round-robin, so that the first queue does not get every chunk of a small job.
local has_more = true
while has_more do
  has_more = false
  for at = FIRST_QUEUE, #ARGV, FIELDS do
    local queue, readers, loaded, takes = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
    if is_open(queue) then
      if add_chunk(queue, readers, loaded, takes) then
        has_more = true
      elseif pool == 'device' and redis.call('ZCARD', keys.dispatched(queue)) == 0 then
        steal(queue, takes, redis.call('SCARD', keys.running(queue)) == 0)
      end
    end
  end
end
if ARGV[6] ~= '' then reply[1] = redis.call('ZCARD', keys.dispatched(ARGV[6])) end
return reply
