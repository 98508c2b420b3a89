-- Top queues of one pool up to their windows with new chunks. Idempotent: computed from what is there.
-- ARGV  1 pool  2 target s of a chunk  3 least s of a chunk  4 most items of a chunk  5 consumers of the pool
--       6.. queue, consumers of this queue, models that are loaded there, by commas, kinds of work that it takes, by commas; ...
-- Returns the number of chunks made, then queue, chunk, job, priority, ... : the messages to publish. Where several chunks wait
-- already, their messages are enough: who takes one goes on with the next.
-- Keeps: a chunk is in the ledger before its message exists; an item is in one chunk or one pending entry, never both.
local pool, target_s, least_s, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local consumers = math.max(1, tonumber(ARGV[5]))
local made, MOST_CHUNKS = {0}, 256
-- Chunks that an engine which takes items as it has room may hold: the slowest item of one must not leave it half empty.
local STREAMED = 6
-- Jobs looked at together, and at most, for the next chunk of a queue.
local PAGE, MOST_LOOKED_AT = 16, 256

local function does_take(takes, kind) return string.find(',' .. takes .. ',', ',' .. kind .. ',', 1, true) end

-- Which of the queues that take this kind of work it is, of those that are not held back.
local function place_of(queue, kind)
  local place = 0
  for at = 6, #ARGV, 4 do
    if does_take(ARGV[at + 3], kind) and redis.call('EXISTS', key_queue_mode(ARGV[at])) == 0 then place = place + 1 end
    if ARGV[at] == queue then return place end
  end
end

-- A device that could not follow a rollout's weights gets no work of it; nor does one beyond those that a job may have.
local function is_barred(job, stage, queue)
  if pool ~= 'device' then return false end
  if redis.call('SISMEMBER', key_rollout_left(job), queue) == 1 then return true end
  local most = tonumber(redis.call('HGET', key_job(job), 'slots') or '')
  return most and place_of(queue, redis.call('HGET', key_job(job), 'pool:' .. stage)) > most
end

-- Jobs that are ready for a queue that takes these kinds of work, least served first, each with how much it was served; a page
-- of them, from this place on.
local function ready_for(takes, priority, first)
  if takes == pool then return redis.call('ZRANGE', key_ready(pool, priority), first, first + PAGE - 1, 'WITHSCORES') end
  local found, best = {}, {}
  for each in string.gmatch(takes, '[^,]+') do
    local some = redis.call('ZRANGE', key_ready(each, priority), first, first + PAGE - 1, 'WITHSCORES')
    for at = 1, #some, 2 do found[#found + 1] = {some[at], some[at + 1]} end
  end
  table.sort(found, function(one, other) return tonumber(one[2]) < tonumber(other[2]) end)
  for _, pair in ipairs(found) do best[#best + 1], best[#best + 2] = pair[1], pair[2] end
  return best
end

-- Best job: highest priority, then least served; a job whose model is loaded may go first while it is close to that.
-- Where all of a page are barred from this queue, the next is looked at, so that jobs kept to some devices leave none idle.
local function choose_of(queue, loaded, takes, priority)
  for first = 0, MOST_LOOKED_AT - 1, PAGE do
    local best, chosen, least = ready_for(takes, priority, first), nil, nil
    if #best == 0 then return nil end
    for at = 1, #best, 2 do
      local job, stage = string.match(best[at], '^([^|]+)|(.+)$')
      if not is_barred(job, stage, queue) then
        if not chosen then chosen, least = best[at], tonumber(best[at + 1]) end
        if loaded == '' or tonumber(best[at + 1]) > least + 4 * target_s then break end
        local model = string.match(redis.call('HGET', key_job(job), 'batch_key') or '', '|(.*)')
        if model and string.find(',' .. loaded .. ',', ',' .. model .. ',', 1, true) then chosen = best[at] break end
      end
    end
    if chosen then return string.match(chosen, '^([^|]+)|(.+)$') end
  end
end

local function choose(queue, loaded, takes)
  for _, priority in ipairs(PRIORITIES) do
    local job, stage = choose_of(queue, loaded, takes, priority)
    if job then return job, stage, priority end
  end
end

-- Take up to `wanted` items off a pending list. Returns ranges, mode, number.
local function cut(job, stage, wanted)
  local list, taken, got = key_job_pending(job, stage), {}, 0
  while got < wanted do
    local entry = redis.call('LPOP', list)
    if not entry then break end
    local mode = string.match(entry, '^[=!]') or ''
    if mode ~= '' then
      if got == 0 then return string.sub(entry, 2), mode, count(entry) end
      redis.call('LPUSH', list, entry)
      break
    end
    local rest = {}
    for first, last in string.gmatch(entry, '(%d+)%-?(%d*)') do
      first, last = tonumber(first), tonumber(last ~= '' and last or first)
      local use = math.min(last - first + 1, wanted - got)
      if use > 0 then taken[#taken + 1] = first .. '-' .. (first + use - 1) end
      if first + use <= last then rest[#rest + 1] = (first + use) .. '-' .. last end
      got = got + use
    end
    if #rest > 0 then redis.call('LPUSH', list, table.concat(rest, ',')) end
  end
  return table.concat(taken, ','), '', got
end

-- What an item of this job costs on this queue, and how long a chunk may be there. A device is measured by itself, for it may be
-- slower than its neighbours; until it is, it gets short chunks, so that it does not hold what they would have done long since.
local function cost_on(queue, job, mean)
  if pool ~= 'device' then return mean, target_s end
  local done = redis.call('HMGET', key_job_workers(job), queue, queue .. ':s')
  if not done[1] or not done[2] or tonumber(done[1]) < 1 then return mean, target_s / 4 end
  return math.max(tonumber(done[2]) / tonumber(done[1]), 0.000001), target_s
end

-- One or two seconds of work; less near the end, so that nobody is left with a long last chunk, but never a crumb.
local function size(queue, job, stage)
  local info = redis.call('HMGET', key_job(job), 'cost:' .. stage, 'pending:' .. stage, 'batch_items:' .. stage, 'least_items:' .. stage)
  local mean, left, batch = math.max(tonumber(info[1]), 0.000001), tonumber(info[2]), tonumber(info[3])
  local cost, most_s = cost_on(queue, job, mean)
  local share = math.ceil(left / (2 * consumers) * math.min(1, mean / cost))
  local full = math.max(math.floor(most_s / cost), tonumber(info[4] or 1))
  local crumb = math.max(math.floor(least_s / cost), math.min(batch, math.ceil(left / consumers)))
  return math.max(1, math.min(most, full, math.max(share, crumb))), cost
end

local function dispatch(queue, readers, id, job, priority, number, seconds)
  redis.call('ZADD', key_dispatched(queue), RANK[priority] * 1e12 + number, id)
  redis.call('HINCRBYFLOAT', key_loads(), queue .. '|' .. priority, seconds)
  redis.call('SADD', key_queues(), queue)
  made[1] = made[1] + 1
  if redis.call('ZCARD', key_dispatched(queue)) > 2 * readers then return end
  for _, value in ipairs({queue, id, job, priority}) do made[#made + 1] = value end
end

-- One chunk to run and one to follow for each reader, some more where an engine runs several at once; many more only while they are
-- small. Work of lower priority that waits already does not count: it can wait.
local function has_room(queue, readers, priority, streams)
  local waiting = redis.call('ZCOUNT', key_dispatched(queue), '-inf', (RANK[priority] + 1) * 1e12)
  local chunks, load = waiting + redis.call('SCARD', key_running(queue)), 0
  if chunks < (streams and STREAMED or 2) * readers then return true end
  for _, each in ipairs(PRIORITIES) do
    if RANK[each] <= RANK[priority] then load = load + tonumber(redis.call('HGET', key_loads(), queue .. '|' .. each) or 0) end
  end
  return chunks < MOST_CHUNKS * readers and load < 2 * target_s * readers
end

-- A stored job whose outcomes wait to be moved out of Redis gets no new items until they are; unless nothing of it is under way
-- that could free the window: then its groups need more than a window, and get it.
local function is_held_back(job, stage)
  local info = redis.call('HMGET', key_job(job), 'first', 'inflight', 'window_items', 'pending:' .. PARTS)
  if facts(job).part_items == 0 or info[1] ~= stage or tonumber(info[2]) < tonumber(info[3]) then return false end
  return redis.call('SCARD', key_job_chunks(job)) > 0 or tonumber(info[4]) > 0
end

-- How many items of this job may be put into a chunk of this stage, and whether that is limited; a sixteenth of the limit at a time,
-- so that not all wait for the slowest.
local function allowance(job, stage, wanted)
  local info = redis.call('HMGET', key_job(job), 'most_out:' .. stage, 'out:' .. stage)
  local most = tonumber(info[1] or 0)
  if most == 0 then return wanted, false end
  return math.min(wanted, math.max(1, math.floor(most / 16)), most - tonumber(info[2] or 0)), true
end

-- Returns whether there may be more to do for this queue.
local function new_chunk(queue, readers, loaded, takes)
  local job, stage, priority = choose(queue, loaded, takes)
  if not job then return false end
  local streams = redis.call('HGET', key_job(job), 'streams:' .. stage) == '1'
  if not has_room(queue, readers, priority, streams) then return false end
  if is_held_back(job, stage) then make_unready(job, stage) return true end
  local wanted, cost = size(queue, job, stage)
  local is_limited
  wanted, is_limited = allowance(job, stage, wanted)
  if wanted <= 0 then make_unready(job, stage) return true end
  local items, mode, number = cut(job, stage, wanted)
  redis.call('HINCRBY', key_job(job), 'pending:' .. stage, -number)
  note_inflight(job, stage, number)
  if redis.call('EXISTS', key_job_pending(job, stage)) == 0 then make_unready(job, stage) end
  if number == 0 then return true end
  redis.call('HINCRBYFLOAT', key_job(job), 'used:' .. stage, number * cost)
  redis.call('HSET', key_job(job), 'served_at:' .. stage, stamp(now()))
  local ready = key_ready(redis.call('HGET', key_job(job), 'pool:' .. stage), priority)
  if redis.call('ZSCORE', ready, job .. '|' .. stage) then redis.call('ZINCRBY', ready, number * cost, job .. '|' .. stage) end
  local sequence = redis.call('INCR', key_sequence())
  local id = job .. '.' .. sequence
  redis.call('HSET', key_chunk(id), 'job', job, 'stage', stage, 'items', items, 'count', number, 'mode', mode,
    'queue', queue, 'state', 'dispatched', 'dispatched_at', stamp(now()), 'priority', priority, 'sequence', sequence, 'seconds', number * cost,
    'batch_key', redis.call('HGET', key_job(job), 'batch_key'))
  if is_limited then
    redis.call('HINCRBY', key_job(job), 'out:' .. stage, number)
    redis.call('HSET', key_chunk(id), 'out', number)
  end
  redis.call('SADD', key_job_chunks(job), id)
  dispatch(queue, readers, id, job, priority, sequence, number * cost)
  return true
end

-- The chunk that waits last on a queue, if it is of a kind that another one takes; which must be idle, unless its engine takes
-- items as it has room.
local function last_for(queue, takes, is_idle)
  local id = redis.call('ZRANGE', key_dispatched(queue), -1, -1)[1]
  if not id then return end
  local info = redis.call('HMGET', key_chunk(id), 'job', 'stage')
  local about = redis.call('HMGET', key_job(info[1] or ''), 'pool:' .. (info[2] or ''), 'streams:' .. (info[2] or ''))
  if not is_idle and about[2] ~= '1' then return end
  return does_take(takes, about[1] or '') and id
end

-- Nothing is pending and nothing waits for this queue: take a chunk that waits behind a busy neighbour. Of a queue that runs
-- something itself, only from one where several wait.
local function steal(queue, takes, is_idle)
  local victim, most_waiting = nil, is_idle and 0 or 1
  for _, other in ipairs(redis.call('SMEMBERS', key_queues())) do
    if other ~= queue and string.sub(other, 1, 4) == 'gpu.' and redis.call('SCARD', key_running(other)) > 0 then
      local waiting = redis.call('ZCARD', key_dispatched(other))
      if waiting > most_waiting and last_for(other, takes, is_idle) then victim, most_waiting = other, waiting end
    end
  end
  if not victim then return end
  local id = last_for(victim, takes, is_idle)
  local info = redis.call('HMGET', key_chunk(id), 'job', 'priority', 'sequence', 'seconds', 'stage')
  if is_barred(info[1], info[5], queue) then return end
  leave_queue(id, victim, info[2], info[4])
  redis.call('HSET', key_chunk(id), 'queue', queue, 'dispatched_at', stamp(now()))
  dispatch(queue, 1, id, info[1], info[2], tonumber(info[3]), info[4])
end

-- In rounds, so that the first queue does not get all of a small job.
local more = true
while more do
  more = false
  for at = 6, #ARGV, 4 do
    local queue, readers, loaded, takes = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
    if redis.call('EXISTS', key_queue_mode(queue)) == 0 then
      if new_chunk(queue, readers, loaded, takes) then more = true
      elseif pool == 'device' and redis.call('ZCARD', key_dispatched(queue)) == 0 then
        steal(queue, takes, redis.call('SCARD', key_running(queue)) == 0)
      end
    end
  end
end
return made
