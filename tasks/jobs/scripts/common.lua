-- What the scripts share. Prepended to each of them, after the key functions of config/keys.py.
--
-- Items are named by index. A set of them is written as ranges: "0-4,7". An entry of a pending list is
--   "0-4,7"    items that may be divided among chunks
--   "=0-4,7"   items that must be one chunk: a whole group
--   "!0-4,7"   items that must be one chunk and run with nothing else: one of them may have killed its worker

-- No script may use INCRBYFLOAT: Redis 6.2 rewrites it to SET ... KEEPTTL, and may do so in the argument array that it keeps
-- for scripts, which is then shorter than it believes. The next long command overruns it and the server crashes.

local PRIORITIES = {'interactive', 'normal', 'bulk'}
local RANK = {interactive = 0, normal = 1, bulk = 2}
local EVENTS_KEPT = 1000
local PROGRESS_EVERY_S = 0.25

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function stamp(seconds) return string.format('%.6f', seconds) end

local function expand(ranges)
  local items = {}
  for first, last in string.gmatch(ranges, '(%d+)%-?(%d*)') do
    for index = tonumber(first), tonumber(last ~= '' and last or first) do items[#items + 1] = index end
  end
  return items
end

local function compress(items)
  table.sort(items)
  local parts, at = {}, 1
  while at <= #items do
    local last = at
    while items[last + 1] == items[last] + 1 do last = last + 1 end
    parts[#parts + 1] = last > at and (items[at] .. '-' .. items[last]) or tostring(items[at])
    at = last + 1
  end
  return table.concat(parts, ',')
end

local function count(entry)
  local total = 0
  for first, last in string.gmatch(entry, '(%d+)%-?(%d*)') do
    total = total + (last ~= '' and tonumber(last) - tonumber(first) or 0) + 1
  end
  return total
end

local function is_active(state) return state == 'queued' or state == 'running' end

local function stages_of(job) return cjson.decode(redis.call('HGET', key_job(job), 'stages')) end

local function tell(job, kind, fields)
  redis.call('XADD', key_job_events(job), 'MAXLEN', '~', EVENTS_KEPT, '*', 'event', kind, unpack(fields or {}))
end

-- Put the job where fill looks for work of this stage, unless it is paused. A newcomer starts level with the least served.
local function make_ready(job, stage)
  local info = redis.call('HMGET', key_job(job), 'pool:' .. stage, 'priority', 'used:' .. stage, 'paused')
  if info[4] == '1' then return end
  local ready, member = key_ready(info[1], info[2]), job .. '|' .. stage
  if redis.call('ZSCORE', ready, member) then return end
  local least = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
  redis.call('ZADD', ready, math.max(tonumber(info[3] or 0), tonumber(least[2] or 0)), member)
end

local function make_unready(job, stage)
  local info = redis.call('HMGET', key_job(job), 'pool:' .. stage, 'priority')
  redis.call('ZREM', key_ready(info[1], info[2]), job .. '|' .. stage)
end

-- Items wait for a chunk of this stage; at the front when they have waited before.
local function push_pending(job, stage, entry, front)
  if count(entry) == 0 or not is_active(redis.call('HGET', key_job(job), 'state')) then return end
  redis.call(front and 'LPUSH' or 'RPUSH', key_job_pending(job, stage), entry)
  redis.call('HINCRBY', key_job(job), 'pending:' .. stage, count(entry))
  make_ready(job, stage)
end

-- The chunk leaves its queue. Estimates are floats: an empty queue's load is taken to be nothing, not what rounding left.
local function leave_queue(id, queue, priority, seconds)
  redis.call('ZREM', key_dispatched(queue), id)
  redis.call('SREM', key_running(queue), id)
  if redis.call('ZCARD', key_dispatched(queue)) + redis.call('SCARD', key_running(queue)) == 0 then
    for _, each in ipairs(PRIORITIES) do redis.call('HDEL', key_loads(), queue .. '|' .. each) end
  else
    redis.call('HINCRBYFLOAT', key_loads(), queue .. '|' .. priority, -tonumber(seconds))
  end
end

-- An item that waited for something. One that was sent to its first stage again meanwhile has nothing to go on from.
local function come_back(job, stage, index)
  local first = redis.call('HGET', key_job(job), 'stages')
  if not first then return end
  if cjson.decode(first)[1].name ~= stage and redis.call('HEXISTS', key_job_carry(job), index) == 0 then return end
  push_pending(job, stage, index, true)
end

local function drop_chunk(id)
  local info = redis.call('HMGET', key_chunk(id), 'job', 'queue', 'incarnation', 'seconds', 'priority')
  if not info[1] then return end
  leave_queue(id, info[2], info[5], info[4])
  redis.call('SREM', key_job_chunks(info[1]), id)
  if info[3] then
    redis.call('SREM', key_held(info[3]), id)
    redis.call('HDEL', key_batch(info[3]), id)
    if redis.call('EXISTS', key_held(info[3])) == 0 then
      redis.call('SREM', key_holders(), info[3])
      redis.call('DEL', key_batch(info[3]))
    end
  end
  redis.call('DEL', key_chunk(id), key_chunk_claims(id))
end

-- The chunk no longer computes this request: whoever waited for it gets another turn, and finds it in the cache or claims it.
local function release_claim(chunk, request)
  redis.call('SREM', key_chunk_claims(chunk), request)
  local owner = redis.call('GET', key_claim(request))
  if owner and string.match(owner, '^%S+') ~= chunk then return end
  redis.call('DEL', key_claim(request))
  local waiting = redis.call('SMEMBERS', key_waiters(request))
  redis.call('DEL', key_waiters(request))
  for _, waiter in ipairs(waiting) do
    local job, stage, index = string.match(waiter, '^(.-)|(.-)|(%d+)$')
    come_back(job, stage, index)
  end
end

local function release_claims(chunk)
  for _, request in ipairs(redis.call('SMEMBERS', key_chunk_claims(chunk))) do release_claim(chunk, request) end
end

-- Not taken yet: its items wait again, so that another queue may have them.
local function return_chunk(id)
  local info = redis.call('HMGET', key_chunk(id), 'job', 'stage', 'items', 'mode')
  drop_chunk(id)
  if info[1] then push_pending(info[1], info[2], info[4] .. info[3], true) end
end

-- The job's last state. Chunks that run go on until their worker asks; what waits is dropped.
local function end_job(job, state, reason)
  local at = now()
  local info = redis.call('HMGET', key_job(job), 'ok', 'failed', 'total', 'keep_s')
  redis.call('HSET', key_job(job), 'state', state, 'ended_at', stamp(at), 'reason', reason)
  for _, stage in ipairs(stages_of(job)) do
    make_unready(job, stage.name)
    redis.call('DEL', key_job_pending(job, stage.name))
    redis.call('HSET', key_job(job), 'pending:' .. stage.name, 0)
  end
  for _, id in ipairs(redis.call('SMEMBERS', key_job_chunks(job))) do
    if redis.call('HGET', key_chunk(id), 'state') == 'dispatched' then drop_chunk(id) end
  end
  redis.call('ZREM', key_deadlines(), job)
  redis.call('ZADD', key_expiry(), stamp(at + tonumber(info[4])), job)
  tell(job, state, {'ok', info[1], 'failed', info[2], 'total', info[3], 'reason', reason})
end

-- After the counters changed: is the job over, or has too much of it failed?
local function check_end(job)
  local info = redis.call('HMGET', key_job(job), 'state', 'ok', 'failed', 'total', 'max_failed_share', 'open', 'told_at')
  if not is_active(info[1]) then return info[1] end
  local ok, failed, total = tonumber(info[2]), tonumber(info[3]), tonumber(info[4])
  if info[6] ~= '1' and failed > tonumber(info[5]) * total then
    end_job(job, 'failed', 'too_many_failed')
    return 'failed'
  end
  if info[6] ~= '1' and ok + failed >= total then
    end_job(job, 'done', '')
    return 'done'
  end
  local at = now()
  if at - tonumber(info[7] or 0) >= PROGRESS_EVERY_S then
    redis.call('HSET', key_job(job), 'told_at', stamp(at))
    tell(job, 'progress', {'ok', info[2], 'failed', info[3], 'total', info[4]})
  end
  return info[1]
end

-- Count an item's result of one stage, once. Returns false when it was counted before.
-- `next` is the stage it goes on to, or '' when `outcome` is final. Groups and ranges for the next stage are collected in `onward`.
local function settle(job, stage, index, status, error_type, cached, next, outcome, onward)
  if redis.call('SETBIT', key_job_passed(job, stage), index, 1) == 1 then return false end
  redis.call('HDEL', key_job_attempts(job), index)
  if next ~= '' then
    redis.call('HSET', key_job_carry(job), index, outcome)
    if redis.call('HGET', key_job(job), 'grouped:' .. next) == '1' then
      local group = redis.call('HGET', key_job_groups(job), index)
      if redis.call('HINCRBY', key_job_awaited(job), group, -1) == 0 then
        push_pending(job, next, '=' .. redis.call('HGET', key_job_members(job), group))
      end
    else
      onward[next] = onward[next] or {}
      table.insert(onward[next], tonumber(index))
    end
    return true
  end
  redis.call('HSET', key_job_outcomes(job), index, outcome)
  redis.call('HDEL', key_job_carry(job), index)
  if status == 'ok' then
    redis.call('HINCRBY', key_job(job), 'ok', 1)
  else
    redis.call('HINCRBY', key_job(job), 'failed', 1)
    redis.call('HINCRBY', key_job_reasons(job), error_type, 1)
  end
  if cached == '1' then redis.call('HINCRBY', key_job(job), 'cached', 1) end
  return true
end

local function send_onward(job, onward)
  for stage, items in pairs(onward) do push_pending(job, stage, compress(items)) end
end
