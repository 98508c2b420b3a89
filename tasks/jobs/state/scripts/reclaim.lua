-- Reclaim the chunks of a dead process: items that are not counted are pending again, claims are released, and
-- suspects (items that may have killed the process) are isolated.
--
-- ARGV
--   1  incarnation
--   2  1 when the death of the process is proven
--   3  number of worker deaths, while an item ran alone, after which the item fails
-- Returns: the number of items that are pending again.
-- Invariants:
--   * Only items of the recorded batch that are not counted are suspects, and only when the death is proven.
--   * Several suspects are bisected: each half runs alone, so that an innocent item is cleared, and an item that kills
--     its worker repeatedly fails.
-- @allow-oom
-- @include chunks
-- @include claims
-- @include commands
-- @include endings
-- @include events
-- @include jobs
-- @include parts
-- @include pending
-- @include ranges
-- @include returns
-- @include tally
-- @include totals
local incarnation, is_proven, most_deaths = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local batch, batch_chunks = commands.read_hash(keys.batch(incarnation)), 0
local is_late = batch.late == '1'
for field in pairs(batch) do
  if field ~= 'begun_at' and field ~= 'deadline_at' and field ~= 'late' then batch_chunks = batch_chunks + 1 end
end

-- Fail items that ran alone and killed their worker. A failed item still passes to the grouped stage of its group.
local function fail(job_id, stage, items, deaths)
  if stage == constants.PARTS then -- a part that cannot be moved stays in Redis
    for _, part in ipairs(items) do parts.move(job_id, part, '') end
    endings.check(job_id)
    return
  end
  local message = is_late and 'The item was still running, alone, at its deadline; its worker was killed.'
    or 'The item killed its worker process ' .. deaths .. ' times while it ran alone.'
  local error_type = is_late and 'timed_out' or 'worker_lost'
  local outcome = cjson.encode({status = is_late and 'timed_out' or 'failed', attempts = deaths,
    error = {type = error_type, message = message, retryable = false}})
  local group_stage, is_after, results = '', false, tally.open(job_id, stage)
  for _, each in ipairs(jobs.stages(job_id)) do
    if each.grouped and is_after then group_stage = each.name end
    if each.name == stage then is_after = true end
  end
  for _, index in ipairs(items) do tally.add(results, index, 'failed', error_type, '0', group_stage, outcome) end
  tally.close(results)
end

-- Make the suspects of a batch pending, isolated from other items. `was_alone`: no other item ran with them, and they
-- cannot be divided further.
local function isolate(job_id, stage, suspects, was_alone, is_grouped)
  if was_alone then
    local field = (stage == constants.PARTS and constants.PARTS or '') .. suspects[1]
    local deaths = redis.call('HINCRBY', keys.job_deaths(job_id), field, 1)
    if deaths >= most_deaths or is_late then return fail(job_id, stage, suspects, deaths) end
  end
  if was_alone or is_grouped then
    return pending.push(job_id, stage, '!' .. ranges.compress(suspects), true)
  end
  local halves, middle = {{}, {}}, math.ceil(#suspects / 2)
  for at, index in ipairs(suspects) do table.insert(halves[at <= middle and 1 or 2], index) end
  for _, half in ipairs(halves) do pending.push(job_id, stage, '!' .. ranges.compress(half), true) end
end

local held, put_back, back = redis.call('SMEMBERS', keys.held(incarnation)), 0, {}
if #held > 0 then totals.count(1, 'lost|' .. (is_proven and 'seen' or 'silent')) end
totals.count(#held, 'recovered')
for _, chunk_id in ipairs(held) do
  local info = redis.call('HMGET', keys.chunk(chunk_id), 'job_id', 'stage', 'items', 'mode')
  local job_id, stage, items, mode = info[1], info[2], info[3], info[4]
  claims.release_all(chunk_id)
  chunks.drop(chunk_id)
  if job_id and jobs.is_runnable(jobs.state(job_id)) then
    local left = returns.left(job_id, stage, items)
    put_back = put_back + #left
    back[job_id] = (back[job_id] or 0) + #left
    local suspects, is_suspect, innocent = {}, {}, {}
    if is_proven and batch[chunk_id] then suspects = returns.left(job_id, stage, batch[chunk_id]) end
    for _, index in ipairs(suspects) do is_suspect[index] = true end
    for _, index in ipairs(left) do
      if not is_suspect[index] then innocent[#innocent + 1] = index end
    end
    returns.put_back(job_id, stage, innocent)
    if #suspects > 0 then
      local is_grouped = redis.call('HGET', keys.job(job_id), 'grouped:' .. stage) == '1'
      local is_one = is_grouped or ranges.count(batch[chunk_id]) == 1
      isolate(job_id, stage, suspects, mode == '!' and batch_chunks == 1 and is_one, is_grouped)
    end
  end
end
for job_id, rows in pairs(back) do
  if rows > 0 then events.log(job_id, 'recovered', {items = math.ceil(rows / jobs.facts(job_id).trials)}) end
end
redis.call('DEL', keys.batch(incarnation), keys.held(incarnation))
redis.call('SREM', keys.holders(), incarnation)
return put_back
