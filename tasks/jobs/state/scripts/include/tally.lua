-- Tally: accumulates results of one stage of a job, and counts each result at most once. The counters are written in
-- one batch after the last result was added, so that a commit writes only one bit per item.
-- @include commands
-- @include endings
-- @include groups
-- @include jobs
-- @include parts
-- @include passed
-- @include pending
-- @include ranges
-- @include totals
-- @hooks
local tally = {}

function tally.open(job_id, stage)
  return {job_id = job_id, stage = stage, ok = 0, failed = 0, cached = 0, counted = {}, outcomes = {}, carry = {},
    final = {}, reasons = {}, grouped = {}, onward = {}}
end

-- Pass an item to its next stage: at once, or with its group, when every item of the group has reached that stage.
local function send_on(results, index, stage, outcome)
  local job_id = results.job_id
  table.insert(results.carry, index)
  table.insert(results.carry, stage .. constants.CARRY_SEPARATOR .. outcome)
  if results.grouped[stage] == nil then
    results.grouped[stage] = redis.call('HGET', keys.job(job_id), 'grouped:' .. stage) == '1'
  end
  if not results.grouped[stage] then
    results.onward[stage] = results.onward[stage] or {}
    table.insert(results.onward[stage], tonumber(index))
    return
  end
  local group = groups.of(job_id, index)
  if redis.call('HINCRBY', keys.job_awaited(job_id), group, -1) == 0 then
    pending.push(job_id, stage, '=' .. groups.members(job_id, group))
  end
end

-- Add a result. `next_stage` is '' when `outcome` is final. Returns false when the item was counted before.
function tally.add(results, index, status, error_type, cached, next_stage, outcome)
  local job_id = results.job_id
  if tonumber(index) < jobs.facts(job_id).trimmed or passed.set(job_id, results.stage, index, 1) then return false end
  results.counted[#results.counted + 1] = index
  if next_stage ~= '' then
    send_on(results, index, next_stage, outcome)
    return true
  end
  results.final[#results.final + 1] = index
  local part = jobs.part_of(job_id, index)
  local outcomes = results.outcomes[part]
  if not outcomes then
    outcomes = {}
    results.outcomes[part] = outcomes
  end
  outcomes[#outcomes + 1] = index
  outcomes[#outcomes + 1] = outcome
  if status == 'ok' then
    results.ok = results.ok + 1
  else
    results.failed = results.failed + 1
    results.reasons[error_type] = (results.reasons[error_type] or 0) + 1
  end
  if cached == '1' then results.cached = results.cached + 1 end
  return true
end

-- Count rows in a hash, and for metrics the items that they complete: an item counts with the commit that has its last
-- row.
local function count_rows(job_id, key, field, rows, name)
  if rows == 0 then return end
  local counted = redis.call('HINCRBY', key, field, rows)
  totals.count(jobs.items_of(job_id, counted) - jobs.items_of(job_id, counted - rows), name)
end

-- Delete the oldest outcomes of a job beyond the last `keep_items`, up to the first item that has no outcome yet.
local function trim(job_id)
  local facts = jobs.facts(job_id)
  if facts.keep_items == 0 then return end
  local last = math.min(facts.total - facts.keep_items, facts.trimmed + 1000)
  while facts.trimmed < last and redis.call('HDEL', keys.job_outcomes(job_id, 0), facts.trimmed) == 1 do
    redis.call('HDEL', keys.job_deaths(job_id), facts.trimmed)
    facts.trimmed = facts.trimmed + 1
    if facts.trimmed % constants.PAGE_ITEMS == 0 then
      local page = facts.trimmed / constants.PAGE_ITEMS - 1
      for _, stage in ipairs(jobs.stages(job_id)) do redis.call('UNLINK', keys.job_passed(job_id, stage.name, page)) end
    end
  end
  redis.call('HSET', keys.job(job_id), 'trimmed', facts.trimmed)
end

-- Write the tally. `attachments` belong to its items, see commit.lua. Returns the job's state, which may be its final
-- state.
function tally.close(results, attachments)
  local job_id = results.job_id
  local facts = jobs.facts(job_id)
  for part, lines in pairs(results.outcomes) do
    commands.in_pages('HSET', keys.job_outcomes(job_id, part), lines)
    if facts.part_items > 0 then
      parts.push_if_complete(job_id, part, redis.call('HINCRBY', keys.job_settled(job_id), part, #lines / 2))
    end
  end
  commands.in_pages('HSET', keys.job_carry(job_id), results.carry)
  if redis.call('EXISTS', keys.job_attempts(job_id)) == 1 then
    commands.in_pages('HDEL', keys.job_attempts(job_id), results.counted)
  end
  if redis.call('EXISTS', keys.job_carry(job_id)) == 1 then
    commands.in_pages('HDEL', keys.job_carry(job_id), results.final)
  end
  local kind = facts.kind
  count_rows(job_id, keys.job(job_id), 'ok', results.ok, 'items|' .. kind .. '|ok')
  count_rows(job_id, keys.job(job_id), 'failed', results.failed, 'items|' .. kind .. '|failed')
  count_rows(job_id, keys.job(job_id), 'cached', results.cached, 'cached|' .. kind)
  for reason, rows in pairs(results.reasons) do
    count_rows(job_id, keys.job_reasons(job_id), reason, rows,
      'errors|' .. (string.match(reason, '^[%w_]+$') or 'other'))
  end
  for stage, indices in pairs(results.onward) do pending.push(job_id, stage, ranges.compress(indices)) end
  trim(job_id)
  local kind_hooks = hooks[kind]
  if kind_hooks and kind_hooks.committed then kind_hooks.committed(job_id, results, attachments or {}) end
  return endings.check(job_id)
end

return tally
