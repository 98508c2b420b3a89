-- A process is gone: its chunks' items wait again, its claims are released, and suspects are isolated.
-- ARGV  1 incarnation  2 1: its death is proven  3 deaths alone that make an item fail
-- Returns the number of items put back.
-- Keeps: only uncommitted items of the batch that was running are suspects, and only when the death is proven. Of several
-- suspects each half runs alone, so an innocent item ends among the innocent; one that kills alone again and again fails.
local incarnation, proven, most_deaths = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local batch, put_back, back = {}, 0, {}
local flat = redis.call('HGETALL', key_batch(incarnation))
local batches = 0
for at = 1, #flat, 2 do
  batch[flat[at]] = flat[at + 1]
  if flat[at] ~= 'begun_at' and flat[at] ~= 'deadline_at' and flat[at] ~= 'late' then batches = batches + 1 end
end

local function uncommitted(job, stage, items)
  local left = {}
  for _, index in ipairs(expand(items)) do
    if not passed(job, stage, index) then left[#left + 1] = index end
  end
  return left
end

-- Items that ran alone and took their worker with them. A failed item still counts in its group.
local function fail(job, stage, items, deaths)
  if stage == PARTS then -- then these outcomes stay where they are
    for _, part in ipairs(items) do move_part(job, part, '') end
    return check_end(job)
  end
  local late = batch['late'] == '1'
  local message = late and 'Still running at its deadline, alone; its worker was stopped.'
    or 'Ended its worker process ' .. deaths .. ' times while it ran alone.'
  local kind = late and 'timed_out' or 'worker_lost'
  local outcome = cjson.encode({status = late and 'timed_out' or 'failed', attempts = deaths,
    error = {type = kind, message = message, retryable = false}})
  local grouped, reached, tally = '', false, open_tally(job, stage)
  for _, each in ipairs(stages_of(job)) do
    if each.grouped and reached then grouped = each.name end
    if each.name == stage then reached = true end
  end
  for _, index in ipairs(items) do settle(tally, index, 'failed', kind, '0', grouped, outcome) end
  close_tally(tally)
end

-- `items` ran in one batch when the worker died; `alone` tells that nothing else ran with them and they cannot be divided.
local function isolate(job, stage, items, alone)
  if alone then
    local deaths = redis.call('HINCRBY', key_job_deaths(job), (stage == PARTS and PARTS or '') .. items[1], 1)
    if deaths >= most_deaths or batch['late'] == '1' then return fail(job, stage, items, deaths) end
    return push_pending(job, stage, '!' .. compress(items), true)
  end
  if redis.call('HGET', key_job(job), 'grouped:' .. stage) == '1' then
    return push_pending(job, stage, '!' .. compress(items), true)
  end
  local parts = {{}, {}}
  for at, index in ipairs(items) do table.insert(parts[at <= math.ceil(#items / 2) and 1 or 2], index) end
  for _, part in ipairs(parts) do push_pending(job, stage, '!' .. compress(part), true) end
end

local held = redis.call('SMEMBERS', key_held(incarnation))
if #held > 0 then count_total(1, 'lost|' .. (proven and 'seen' or 'silent')) end
count_total(#held, 'recovered')
for _, chunk in ipairs(held) do
  local info = redis.call('HMGET', key_chunk(chunk), 'job', 'stage', 'items', 'mode')
  local job, stage, mode = info[1], info[2], info[4]
  release_claims(chunk)
  drop_chunk(chunk)
  if job and is_active(redis.call('HGET', key_job(job), 'state')) then
    local left = uncommitted(job, stage, info[3])
    put_back = put_back + #left
    back[job] = (back[job] or 0) + #left
    local suspects, suspected, innocent = {}, {}, {}
    if proven and batch[chunk] then suspects = uncommitted(job, stage, batch[chunk]) end
    for _, index in ipairs(suspects) do suspected[index] = true end
    for _, index in ipairs(left) do if not suspected[index] then innocent[#innocent + 1] = index end end
    local whole = redis.call('HGET', key_job(job), 'grouped:' .. stage) == '1'
    push_pending(job, stage, (whole and '=' or '') .. compress(innocent), true)
    if #suspects > 0 then isolate(job, stage, suspects, mode == '!' and batches == 1 and (whole or count(batch[chunk]) == 1)) end
  end
end
for job, number in pairs(back) do if number > 0 then note(job, 'recovered', {'items', math.ceil(number / facts(job).trials)}) end end
redis.call('DEL', key_batch(incarnation), key_held(incarnation))
redis.call('SREM', key_holders(), incarnation)
return put_back
