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
-- Bitmaps and groups are kept in pages, so that those of an open-ended job can be dropped one by one.
local PAGE_ITEMS, GROUP_DIGITS = 8192, 10
-- The stage that moves the outcomes of a stored job into storage; its "items" are parts.
local PARTS = '~parts'
local PROGRESS_EVERY_S = 0.25
-- Parked instead of an item: the stage may go on.
local RESTED = '~'

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

local function is_active(state) return state == 'queued' or state == 'running' or state == 'finishing' end

local function passed(job, stage, index)
  return redis.call('GETBIT', key_job_passed(job, stage, math.floor(index / PAGE_ITEMS)), index % PAGE_ITEMS) == 1
end

-- Returns what the bit was.
local function pass(job, stage, index, bit)
  return redis.call('SETBIT', key_job_passed(job, stage, math.floor(index / PAGE_ITEMS)), index % PAGE_ITEMS, bit)
end

local function group_of(job, index)
  local at = index % PAGE_ITEMS * GROUP_DIGITS
  local group = redis.call('GETRANGE', key_job_groups(job, math.floor(index / PAGE_ITEMS)), at, at + GROUP_DIGITS - 1)
  return tostring(tonumber(group))
end

-- Of rollouts; defined in part_samples.lua.
local put_bundles, note_generated, feed

-- What of a job is asked for with every item. Read once a call.
local known = {}
local function facts(job)
  if not known[job] then
    local info = redis.call('HMGET', key_job(job), 'part_items', 'total', 'keep_items', 'trimmed', 'feeds', 'kind', 'layout')
    known[job] = {part_items = tonumber(info[1] or 0), total = tonumber(info[2] or 0), keep_items = tonumber(info[3] or 0),
      trimmed = tonumber(info[4] or 0), feeds = info[5] == '1', kind = info[6] or '',
      trials = tonumber(string.match(info[7] or '', '^trials:(%d+)$') or 1)}
  end
  return known[job]
end

-- Items of so many rows: where an item is run several times, each trial is a row.
local function items_of(job, rows) return math.floor(tonumber(rows) / facts(job).trials) end

-- The part of a stored job that an item belongs to; other jobs have one.
local function part_of(job, index)
  return facts(job).part_items > 0 and math.floor(index / facts(job).part_items) or 0
end

local function part_size(job, part)
  return math.min(facts(job).part_items, facts(job).total - part * facts(job).part_items)
end

local function stages_of(job) return cjson.decode(redis.call('HGET', key_job(job), 'stages')) end

-- For the log, see tasks/jobs/chronicle.py.
local function note(job, event, fields)
  local entry = table.concat({job, event, facts(job).kind, unpack(fields or {})}, '|')
  if redis.call('RPUSH', key_happened(), entry) > EVENTS_KEPT then redis.call('LTRIM', key_happened(), -EVENTS_KEPT, -1) end
end

local function tell(job, kind, fields)
  redis.call('XADD', key_job_events(job), 'MAXLEN', '~', EVENTS_KEPT, '*', 'event', kind, unpack(fields or {}))
end

-- Put the job where fill looks for work of this stage, unless it is paused or rests. A newcomer starts level with the least served.
local function make_ready(job, stage)
  local info = redis.call('HMGET', key_job(job), 'pool:' .. stage, 'priority', 'used:' .. stage, 'paused', 'rests_until:' .. stage)
  if info[4] == '1' or tonumber(info[5] or 0) > now() then return end
  local ready, member = key_ready(info[1], info[2]), job .. '|' .. stage
  if redis.call('ZSCORE', ready, member) then return end
  local least = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
  redis.call('ZADD', ready, math.max(tonumber(info[3] or 0), tonumber(least[2] or 0)), member)
end

local function make_unready(job, stage)
  local info = redis.call('HMGET', key_job(job), 'pool:' .. stage, 'priority')
  redis.call('ZREM', key_ready(info[1], info[2]), job .. '|' .. stage)
end

-- What this stage needs is away until then: the job gets no more chunks of it, which would only take up workers.
local function rest(job, stage, due)
  redis.call('HSET', key_job(job), 'rests_until:' .. stage, stamp(due))
  redis.call('ZADD', key_parked(), stamp(due), job .. '|' .. stage .. '|' .. RESTED)
  make_unready(job, stage)
end

-- Items of a stored job that have left the first stage's pending list and are not in its files: what takes memory.
local function note_inflight(job, stage, number)
  if facts(job).part_items > 0 and redis.call('HGET', key_job(job), 'first') == stage then
    redis.call('HINCRBY', key_job(job), 'inflight', number)
  end
end

-- Items wait for a chunk of this stage; at the front when they have waited before.
local function push_pending(job, stage, entry, front)
  if count(entry) == 0 or not is_active(redis.call('HGET', key_job(job), 'state')) then return end
  redis.call(front and 'LPUSH' or 'RPUSH', key_job_pending(job, stage), entry)
  redis.call('HINCRBY', key_job(job), 'pending:' .. stage, count(entry))
  note_inflight(job, stage, -count(entry))
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
  local first = redis.call('HGET', key_job(job), 'first')
  if not first then return end
  if first ~= stage and stage ~= PARTS and redis.call('HEXISTS', key_job_carry(job), index) == 0 then return end
  push_pending(job, stage, index, true)
end

-- So many items of a chunk are out no more: their job, which may have only so many out, can have others.
local function come_in(id, job, stage, number)
  redis.call('HINCRBY', key_chunk(id), 'out', -number)
  if redis.call('EXISTS', key_job(job)) == 0 then return end
  redis.call('HINCRBY', key_job(job), 'out:' .. stage, -number)
  if redis.call('EXISTS', key_job_pending(job, stage)) == 1 then make_ready(job, stage) end
end

local function drop_chunk(id)
  local info = redis.call('HMGET', key_chunk(id), 'job', 'queue', 'incarnation', 'seconds', 'priority', 'stage', 'out')
  if not info[1] then return end
  leave_queue(id, info[2], info[5], info[4])
  redis.call('SREM', key_job_chunks(info[1]), id)
  if tonumber(info[7] or 0) > 0 then come_in(id, info[1], info[6], tonumber(info[7])) end
  if facts(info[1]).part_items > 0 and redis.call('SCARD', key_job_chunks(info[1])) == 0 then
    local first = redis.call('HGET', key_job(info[1]), 'first') -- it may have been held back
    if redis.call('EXISTS', key_job_pending(info[1], first)) == 1 then make_ready(info[1], first) end
  end
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

-- For metrics: the job ended so, after so many seconds, with so many items that have no outcome.
local function count_end(job, state, unfinished, seconds)
  local kind, bound = facts(job).kind, '+Inf'
  for _, each in ipairs(JOB_BUCKETS) do
    if seconds <= each then bound = each break end
  end
  count_total(1, 'jobs_ended|' .. kind .. '|' .. state)
  count_total(items_of(job, unfinished), 'items|' .. kind .. '|unfinished')
  count_total(1, 'job_s|' .. kind .. '|' .. tostring(bound))
  count_total(math.floor(seconds * 1000000), 'job_s|' .. kind .. '|sum')
end

-- The job's last state. Chunks that run go on until their worker asks; what waits is dropped.
local function end_job(job, state, reason)
  local at = now()
  local info = redis.call('HMGET', key_job(job), 'ok', 'failed', 'total', 'keep_s', 'created_at')
  count_end(job, state, tonumber(info[3]) - tonumber(info[1]) - tonumber(info[2]), at - tonumber(info[5] or at))
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
  note(job, state, {'ok', items_of(job, info[1]), 'failed', items_of(job, info[2]), 'total', items_of(job, info[3]), 'seconds', at - tonumber(info[5] or at), 'reason', reason})
end

-- After the counters changed: is the job over, or has too much of it failed?
local function check_end(job)
  local info = redis.call('HMGET', key_job(job), 'state', 'ok', 'failed', 'total', 'max_failed_share', 'open', 'told_at', 'merged')
  if not is_active(info[1]) then return info[1] end
  local ok, failed, total = tonumber(info[2]), tonumber(info[3]), tonumber(info[4])
  if info[6] ~= '1' and failed > tonumber(info[5]) * total then
    end_job(job, 'failed', 'too_many_failed')
    return 'failed'
  end
  if info[6] ~= '1' and ok + failed >= total then
    local parts = facts(job).part_items > 0 and math.ceil(total / facts(job).part_items) or 0
    if tonumber(info[8] or 0) >= parts then
      end_job(job, 'done', '')
      return 'done'
    end
    if info[1] ~= 'finishing' then
      redis.call('HSET', key_job(job), 'state', 'finishing')
      redis.call('ZREM', key_deadlines(), job)
      tell(job, 'finishing', {'ok', info[2], 'failed', info[3], 'total', info[4]})
    end
    return 'finishing'
  end
  local at = now()
  if at - tonumber(info[7] or 0) >= PROGRESS_EVERY_S then
    redis.call('HSET', key_job(job), 'told_at', stamp(at))
    tell(job, 'progress', {'ok', info[2], 'failed', info[3], 'total', info[4]})
  end
  return info[1]
end

-- Results of one job's stage are counted in a tally, each once, and the books are written when all are in it: of the writes of a
-- commit only one, the item's bit, is left for each item.
local function open_tally(job, stage)
  return {job = job, stage = stage, ok = 0, failed = 0, cached = 0, counted = {}, outcomes = {}, carry = {}, final = {},
    reasons = {}, grouped = {}, onward = {}, bundles = {}}
end

local function add(counts, name, number) counts[name] = (counts[name] or 0) + number end

-- Returns false when the item was counted before. `next` is the stage it goes on to, or '' when `outcome` is final.
local function settle(tally, index, status, error_type, cached, next, outcome)
  local job = tally.job
  if tonumber(index) < facts(job).trimmed or pass(job, tally.stage, index, 1) == 1 then return false end
  tally.counted[#tally.counted + 1] = index
  if next ~= '' then
    table.insert(tally.carry, index)
    table.insert(tally.carry, outcome)
    if tally.grouped[next] == nil then
      tally.grouped[next] = redis.call('HGET', key_job(job), 'grouped:' .. next) == '1'
    end
    if not tally.grouped[next] then
      tally.onward[next] = tally.onward[next] or {}
      table.insert(tally.onward[next], tonumber(index))
    else
      local group = group_of(job, index)
      if redis.call('HINCRBY', key_job_awaited(job), group, -1) == 0 then
        push_pending(job, next, '=' .. redis.call('HGET', key_job_members(job), group))
      end
    end
    return true
  end
  tally.final[#tally.final + 1] = index
  local cut = facts(job).feeds and string.find(outcome, '\n', 1, true)
  if cut then
    tally.bundles[#tally.bundles + 1] = string.sub(outcome, cut + 1)
    outcome = string.sub(outcome, 1, cut - 1)
  end
  local part = part_of(job, index)
  tally.outcomes[part] = tally.outcomes[part] or {}
  table.insert(tally.outcomes[part], index)
  table.insert(tally.outcomes[part], outcome)
  if status == 'ok' then tally.ok = tally.ok + 1 else tally.failed = tally.failed + 1 add(tally.reasons, error_type, 1) end
  if cached == '1' then tally.cached = tally.cached + 1 end
  return true
end

-- A command with a long list, in pages that Lua can pass on.
local function call_paged(command, key, list)
  for at = 1, #list, 2000 do redis.call(command, key, unpack(list, at, math.min(at + 1999, #list))) end
end

-- The outcomes of a part are in this file now, and leave Redis; with no file they stay. Returns false when it was done before.
local function move_part(job, part, file)
  if pass(job, PARTS, part, 1) == 1 then return false end
  redis.call('HINCRBY', key_job(job), 'inflight', -redis.call('HLEN', key_job_outcomes(job, part)))
  if file ~= '' then
    redis.call('HSET', key_job_parts(job), part, file)
    redis.call('UNLINK', key_job_outcomes(job, part))
  end
  redis.call('HINCRBY', key_job(job), 'merged', 1)
  local first = redis.call('HGET', key_job(job), 'first')
  if redis.call('EXISTS', key_job_pending(job, first)) == 1 then make_ready(job, first) end
  return true
end

-- Of an open-ended job: forget the oldest outcomes beyond what it keeps, up to the first item that has none.
local function trim(job)
  local about = facts(job)
  if about.keep_items == 0 then return end
  local last = math.min(about.total - about.keep_items, about.trimmed + 1000)
  while about.trimmed < last and redis.call('HDEL', key_job_outcomes(job, 0), about.trimmed) == 1 do
    for _, key in ipairs({key_job_members(job), key_job_awaited(job), key_job_deaths(job)}) do
      redis.call('HDEL', key, about.trimmed)
    end
    if not about.feeds then redis.call('HDEL', key_job_blocks(job), about.trimmed) end -- those of a rollout are its prompts
    about.trimmed = about.trimmed + 1
    if about.trimmed % PAGE_ITEMS == 0 then
      local page = about.trimmed / PAGE_ITEMS - 1
      redis.call('UNLINK', key_job_groups(job, page))
      for _, stage in ipairs(stages_of(job)) do redis.call('UNLINK', key_job_passed(job, stage.name, page)) end
    end
  end
  redis.call('HSET', key_job(job), 'trimmed', about.trimmed)
end

-- Write what the tally holds. Returns the job's state, which may be its last.
local function close_tally(tally)
  local job = tally.job
  for part, lines in pairs(tally.outcomes) do
    call_paged('HSET', key_job_outcomes(job, part), lines)
    if facts(job).part_items > 0
      and redis.call('HINCRBY', key_job_settled(job), part, #lines / 2) == part_size(job, part) then
      push_pending(job, PARTS, tostring(part))
    end
  end
  call_paged('HSET', key_job_carry(job), tally.carry)
  if redis.call('EXISTS', key_job_attempts(job)) == 1 then call_paged('HDEL', key_job_attempts(job), tally.counted) end
  if redis.call('EXISTS', key_job_carry(job)) == 1 then call_paged('HDEL', key_job_carry(job), tally.final) end
  -- An item counts with its last row, in whichever commit that is.
  local function count_rows(key, field, rows, name)
    if rows == 0 then return end
    local counted = redis.call('HINCRBY', key, field, rows)
    count_total(items_of(job, counted) - items_of(job, counted - rows), name)
  end
  local kind = facts(job).kind
  count_rows(key_job(job), 'ok', tally.ok, 'items|' .. kind .. '|ok')
  count_rows(key_job(job), 'failed', tally.failed, 'items|' .. kind .. '|failed')
  count_rows(key_job(job), 'cached', tally.cached, 'cached|' .. kind)
  for reason, rows in pairs(tally.reasons) do
    count_rows(key_job_reasons(job), reason, rows, 'errors|' .. (string.match(reason, '^[%w_]+$') or 'other'))
  end
  for stage, items in pairs(tally.onward) do push_pending(job, stage, compress(items)) end
  trim(job)
  if facts(job).feeds then
    put_bundles(job, tally.bundles)
    note_generated(job, tally)
    feed(job)
  end
  return check_end(job)
end
